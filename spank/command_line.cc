// SPDX-License-Identifier: Apache-2.0
#include "spank/command_line.h"

#include <fstream>
#include <iterator>
#include <optional>

namespace af::spank {
namespace {

bool ends_options(const std::string& word) {
  return word == "--" || word == ":";
}
bool is_operand(const std::string& word) {
  return word.size() < 2 || word[0] != '-';
}

// getopt's rule: an exact name wins, else a prefix that only one option has.
const LongOption* find_long(std::string_view name, const std::vector<LongOption>& options) {
  const LongOption* found = nullptr;
  for (const LongOption& option : options) {
    if (option.name == name) return &option;
    if (!option.name.starts_with(name)) continue;
    // Two names for one thing (same value, same argument) are not ambiguous.
    if (found && (found->value != option.value || found->argument != option.argument)) {
      return nullptr;
    }
    if (!found) found = &option;
  }
  return found;
}

std::optional<Argument> find_short(char letter, const std::string& short_options) {
  const std::size_t at = short_options.find(letter);
  if (letter == ':' || at == std::string::npos) return std::nullopt;
  if (short_options.compare(at + 1, 2, "::") == 0) return Argument::kOptional;
  if (short_options.compare(at + 1, 1, ":") == 0) return Argument::kRequired;
  return Argument::kNone;
}

std::string long_name_of(char letter, const OptionSyntax& syntax) {
  for (const LongOption& option : syntax.long_options) {
    if (option.value == letter) return option.name;
  }
  return std::string(1, letter);
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> words, const OptionSyntax& syntax) {
  CommandLine line;
  std::size_t i = 0;
  const auto next_word = [&] { return i + 1 < words.size() ? words[++i] : std::string(); };

  for (; i < words.size() && !ends_options(words[i]) && !is_operand(words[i]); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
      const LongOption* option = find_long(name, syntax.long_options);
      if (!option) {
        line.unknown.push_back("--" + name);
        continue;
      }
      GivenOption given{option->name, equals == std::string::npos ? "" : word.substr(equals + 1)};
      if (option->argument == Argument::kRequired && equals == std::string::npos) {
        given.value = next_word();
      }
      line.options.push_back(given);
      continue;
    }
    for (std::size_t at = 1; at < word.size(); ++at) {
      const std::optional<Argument> argument = find_short(word[at], syntax.short_options);
      if (!argument) {
        line.unknown.push_back(std::string("-") + word[at]);
        break;
      }
      GivenOption given{long_name_of(word[at], syntax), ""};
      if (*argument != Argument::kNone) {
        given.value = word.substr(at + 1);
        if (given.value.empty() && *argument == Argument::kRequired) given.value = next_word();
      }
      line.options.push_back(given);
      if (*argument != Argument::kNone) break;
    }
  }
  if (i < words.size() && words[i] == "--") ++i;
  for (; i < words.size() && words[i] != ":"; ++i) line.operands.push_back(words[i]);
  return line;
}

namespace {

// The number of words before the first that looks like an operand.
std::size_t likely_length(std::span<const std::string> words) {
  bool may_be_value = false;
  std::size_t i = 0;
  for (; i < words.size() && !ends_options(words[i]); ++i) {
    if (is_operand(words[i])) {
      if (!may_be_value) break;
      may_be_value = false;
    } else {
      may_be_value = words[i].find('=') == std::string::npos;
    }
  }
  return i;
}

}  // namespace

std::vector<std::string> likely_options(std::span<const std::string> words) {
  std::vector<std::string> options;
  for (const std::string& word : words.first(likely_length(words))) {
    if (!is_operand(word)) options.push_back(word.substr(0, word.find('=')));
  }
  return options;
}

std::string likely_operand(std::span<const std::string> words) {
  std::size_t i = likely_length(words);
  if (i < words.size() && words[i] == "--") ++i;
  return i < words.size() && words[i] != ":" ? words[i] : "";
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> words;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = text.find('\0', from);
    words.push_back(text.substr(from, to - from));
    if (to == std::string::npos) break;
    from = to + 1;
  }
  if (!words.empty()) words.erase(words.begin());
  return words;
}

}  // namespace af::spank
