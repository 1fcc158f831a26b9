// SPDX-License-Identifier: Apache-2.0
#include "common/nearest_name.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace af {
namespace {

// What all options of ours start with says nothing about which one is meant.
std::string_view core_of(std::string_view name) {
  if (name.starts_with("af-")) name.remove_prefix(3);
  return name;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rows of the usual table, since a swap looks back two rows.
  const std::size_t width = b.size() + 1;
  std::vector<int> before(width), previous(width), row(width);
  for (std::size_t j = 0; j < width; ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < width; ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

std::optional<std::string> nearest_name(std::string_view wrong,
                                        std::span<const std::string> names) {
  const std::string_view core = core_of(wrong);
  if (core.empty()) return std::nullopt;
  const std::string* nearest = nullptr;
  int least = std::numeric_limits<int>::max();
  for (const std::string& name : names) {
    const std::string_view other = core_of(name);
    int distance = edit_distance(core, other);
    if (core.size() >= 3 && other.find(core) != other.npos) distance = std::min(distance, 2);
    if (other.size() >= 3 && core.starts_with(other)) distance = std::min(distance, 2);
    const int longest = static_cast<int>(std::max(core.size(), other.size()));
    if (distance <= std::max(2, longest / 3) && distance < longest && distance < least) {
      least = distance;
      nearest = &name;
    }
  }
  return nearest ? std::optional(*nearest) : std::nullopt;
}

std::string did_you_mean(std::string_view wrong, std::span<const std::string> names) {
  const auto nearest = nearest_name(wrong, names);
  return nearest ? ", did you mean '" + *nearest + "'?" : "";
}

}  // namespace af
