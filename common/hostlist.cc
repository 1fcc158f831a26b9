// SPDX-License-Identifier: Apache-2.0
#include "common/hostlist.h"

#include <algorithm>

#include "common/error.h"

namespace af {
namespace {

// A list with numbers in brackets can stand for more names than memory holds.
constexpr std::size_t kMostNames = 65536;

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

Error not_a_list(std::string_view list, std::string_view why) {
  return Error::format("'{}' is not a Slurm node list: {}", list, why);
}

// Splits at the commas outside of brackets.
std::vector<std::string_view> split_names(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[' && ++depth > 1) throw not_a_list(list, "a bracket inside of brackets");
    if (c == ']' && --depth < 0) throw not_a_list(list, "']' without '['");
    if (c != ',' || (depth > 0 && i < list.size())) continue;
    parts.push_back(list.substr(start, i - start));
    start = i + 1;
  }
  if (depth != 0) throw not_a_list(list, "'[' without ']'");
  return parts;
}

// "01-03" -> 01 02 03; the width is that of the first number.
void expand_range(std::string_view range, std::string_view list, std::vector<std::string>& out) {
  const std::size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == range.npos ? first : range.substr(dash + 1);
  if (!all_digits(first) || !all_digits(last) || first.size() > 9 || last.size() > 9)
    throw not_a_list(list, fmt::format("'{}' is no number or range", range));
  const int low = std::stoi(std::string(first));
  const int high = std::stoi(std::string(last));
  if (high < low) throw not_a_list(list, fmt::format("the range '{}' goes down", range));
  if (static_cast<std::size_t>(high - low) >= kMostNames) throw not_a_list(list, "too many names");
  for (int i = low; i <= high; ++i) out.push_back(fmt::format("{:0{}}", i, first.size()));
}

// One name with any number of brackets; the rightmost counts fastest.
std::vector<std::string> expand_name(std::string_view name, std::string_view list) {
  std::vector<std::string> names = {""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    for (std::string& one : names) one += name.substr(0, open);
    if (open == name.npos) break;
    const std::size_t close = name.find(']', open);
    std::vector<std::string> numbers;
    std::string_view inside = name.substr(open + 1, close - open - 1);
    for (;;) {
      const std::size_t comma = inside.find(',');
      expand_range(inside.substr(0, comma), list, numbers);
      if (comma == inside.npos) break;
      inside.remove_prefix(comma + 1);
    }
    if (names.size() * numbers.size() > kMostNames) throw not_a_list(list, "too many names");
    std::vector<std::string> longer;
    for (const std::string& one : names)
      for (const std::string& number : numbers) longer.push_back(one + number);
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view list) {
  std::vector<std::string> all;
  if (list.empty()) return all;
  for (const std::string_view part : split_names(list)) {
    if (part.empty()) continue;  // "a,,b": scontrol skips it too
    std::vector<std::string> names = expand_name(part, list);
    if (all.size() + names.size() > kMostNames) throw not_a_list(list, "too many names");
    std::ranges::move(names, std::back_inserter(all));
  }
  return all;
}

std::vector<int> expand_tasks_per_node(std::string_view list) {
  const auto wrong = [&] {
    return Error::format("'{}' is not a list of tasks per node (expected: 2(x3),1)", list);
  };
  const auto number = [&](std::string_view text) {
    if (!all_digits(text) || text.size() > 6) throw wrong();
    return std::stoi(std::string(text));
  };
  std::vector<int> tasks;
  for (std::string_view rest = list; !list.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t times = part.find("(x");
    int repeat = 1;
    if (times != part.npos) {
      if (!part.ends_with(')')) throw wrong();
      repeat = number(part.substr(times + 2, part.size() - times - 3));
    }
    if (tasks.size() + static_cast<std::size_t>(repeat) > kMostNames) throw wrong();
    tasks.insert(tasks.end(), static_cast<std::size_t>(repeat), number(part.substr(0, times)));
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  return tasks;
}

}  // namespace af
