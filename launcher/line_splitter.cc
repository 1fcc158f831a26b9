// SPDX-License-Identifier: Apache-2.0
#include "launcher/line_splitter.h"

#include <algorithm>
#include <utility>

namespace af {
namespace {
constexpr size_t kLongestTailLine = 400;
}

std::vector<std::string> LineSplitter::feed(std::string_view bytes) {
  std::vector<std::string> lines;
  size_t searched = pending_.empty() ? 0 : pending_.size() - 1;  // a "\r" may wait for its "\n"
  pending_.append(bytes);
  size_t start = 0;
  for (;;) {
    size_t end = pending_.find_first_of("\r\n", std::max(start, searched));
    if (end == std::string::npos) break;
    if (pending_[end] == '\r') {
      if (end + 1 == pending_.size()) break;  // "\r\n" may be on its way
      if (pending_[end + 1] == '\n') ++end;
    }
    lines.push_back(pending_.substr(start, end + 1 - start));
    start = end + 1;
  }
  pending_.erase(0, start);
  while (pending_.size() > kLongest) {
    lines.push_back(pending_.substr(0, kLongest));
    pending_.erase(0, kLongest);
  }
  return lines;
}

std::string LineSplitter::rest() {
  return std::exchange(pending_, "");
}

void Tail::add(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.empty()) return;
  if (lines_.size() == most_) lines_.pop_front();
  lines_.emplace_back(line.substr(0, kLongestTailLine));
  if (line.size() > kLongestTailLine) lines_.back() += " …";
}

}  // namespace af
