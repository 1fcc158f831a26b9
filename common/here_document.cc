// SPDX-License-Identifier: Apache-2.0
#include "common/here_document.h"

namespace af {
namespace {

bool is_word_end(char c) {
  return std::string_view(" \t;&|<>()").find(c) != std::string_view::npos;
}

// Reads the word behind "<<" at `i`, quotes and backslashes removed; leaves `i` behind it.
std::string read_word(std::string_view line, std::size_t& i) {
  while (i < line.size() && (line[i] == ' ' || line[i] == '\t')) ++i;
  std::string word;
  char quote = 0;
  for (; i < line.size() && (quote || !is_word_end(line[i])); ++i) {
    if (quote ? line[i] == quote : line[i] == '\'' || line[i] == '"')
      quote = quote ? 0 : line[i];
    else if (line[i] != '\\')
      word += line[i];
  }
  return word;
}

}  // namespace

std::vector<HereDocument> here_documents_on(std::string_view line) {
  std::vector<HereDocument> found;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote) {
      if (c == '\\' && quote == '"')
        ++i;
      else if (c == quote)
        quote = 0;
    } else if (c == '\\') {
      ++i;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '#' && (i == 0 || is_word_end(line[i - 1]))) {
      break;
    } else if (line.substr(i).starts_with("<<<")) {
      i += 2;
    } else if (line.substr(i).starts_with("<<")) {
      i += 2;
      HereDocument document;
      if (i < line.size() && line[i] == '-') {
        document.strip_tabs = true;
        ++i;
      }
      document.word = read_word(line, i);
      if (!document.word.empty()) found.push_back(std::move(document));
      --i;  // the loop's step
    }
  }
  return found;
}

std::size_t after_here_document(std::span<const std::string_view> lines, std::size_t first,
                                const HereDocument& document) {
  for (std::size_t i = first; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    while (document.strip_tabs && line.starts_with('\t')) line.remove_prefix(1);
    if (line == document.word) return i + 1;
  }
  return first;
}

}  // namespace af
