// SPDX-License-Identifier: Apache-2.0
// The rules are those of sbatch (src/sbatch/opt.c, _opt_batch_script, the same from 20.11
// to 26.05): a line that begins with "#SBATCH" is a directive, whatever follows it; reading ends at
// the first line whose first non-blank character is not '#'.
#include "common/batch_script.h"

#include <cctype>
#include <span>

#include "common/error.h"
#include "common/here_document.h"
#include "common/settings.h"

namespace af {
namespace {

constexpr std::string_view kMagic = "#SBATCH";

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return lines;
}

std::string_view without_indent(std::string_view line) {
  const std::size_t start = line.find_first_not_of(" \t\r\f\v");
  return start == line.npos ? std::string_view() : line.substr(start);
}

bool is_command(std::string_view line) {
  const std::string_view text = without_indent(line);
  return !text.empty() && text.front() != '#';
}

// The words of a directive, as sbatch splits them (_get_argument): a backslash keeps the next
// character in quotes of both kinds, and an unquoted '#' starts a comment even inside a word.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  const auto finish = [&] {
    if (inside) words.push_back(std::move(word));
    word.clear();
    inside = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && std::isspace(static_cast<unsigned char>(c))) {
      finish();
      continue;
    }
    if (quote == 0 && c == '#') break;
    inside = true;
    if (c == '\\' && i + 1 < text.size())
      word += text[++i];
    else if (quote == 0 && (c == '"' || c == '\''))
      quote = c;
    else if (c == quote && quote != 0)
      quote = 0;
    else
      word += c;
  }
  finish();
  return words;
}

// The af options of a directive; `text` is what follows "#SBATCH".
std::vector<ScriptSetting> af_options(std::string_view text, int line) {
  std::vector<ScriptSetting> found;
  const std::vector<std::string> words = words_of(text);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--af-")) continue;
    const std::size_t equals = words[i].find('=');
    ScriptSetting setting{
        line, words[i].substr(2, equals == std::string::npos ? equals : equals - 2), ""};
    const SettingSpec* spec = find_setting(setting.name);
    const bool flag = spec && spec->type == SettingType::kFlag;
    if (equals != std::string::npos)
      setting.value = words[i].substr(equals + 1);
    else if (!flag && i + 1 < words.size())
      setting.value = words[++i];
    found.push_back(std::move(setting));
  }
  return found;
}

// "#sbatch" is nobody's way to comment a line out, as "##SBATCH" and "# SBATCH" are.
bool is_wrong_case(std::string_view line) {
  if (line.size() < kMagic.size() || line.starts_with(kMagic)) return false;
  for (std::size_t i = 0; i < kMagic.size(); ++i)
    if (std::toupper(static_cast<unsigned char>(line[i])) != kMagic[i]) return false;
  return true;
}

ScriptWarning warning(int line, std::string_view text, std::string_view why) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return {line, fmt::format("line {}: Slurm ignores '{}': {}", line, text, why)};
}

}  // namespace

std::vector<ScriptWarning> find_ignored_settings(std::string_view script) {
  std::vector<ScriptWarning> warnings;
  const std::vector<std::string_view> lines = split_lines(script);
  int first_command = 0;  // line number; 0 = still in the head of the script
  for (std::size_t i = 0; i < lines.size();) {
    const int number = static_cast<int>(i) + 1;
    const std::string_view line = lines[i++];
    const std::string_view text = without_indent(line);
    const bool directive = text.starts_with(kMagic) || is_wrong_case(text);
    if (directive && !af_options(text.substr(kMagic.size()), number).empty()) {
      if (first_command > 0)
        warnings.push_back(
            warning(number, text,
                    fmt::format("it stands after the first command (line {}): move it above",
                                first_command)));
      else if (text.size() != line.size())
        warnings.push_back(warning(number, text, "it is indented: start it in the first column"));
      else if (is_wrong_case(text))
        warnings.push_back(warning(number, text, "write #SBATCH in capitals"));
    }
    if (!is_command(line)) continue;
    if (first_command == 0) first_command = number;
    for (const HereDocument& document : here_documents_on(line))
      i = after_here_document(lines, i, document);
  }
  return warnings;
}

std::vector<ScriptSetting> settings_in_script(std::string_view script) {
  std::vector<ScriptSetting> settings;
  int number = 0;
  for (const std::string_view line : split_lines(script)) {
    ++number;
    if (line.starts_with(kMagic)) {
      for (ScriptSetting& setting : af_options(line.substr(kMagic.size()), number))
        settings.push_back(std::move(setting));
    } else if (is_command(line)) {
      break;
    }
  }
  return settings;
}

}  // namespace af
