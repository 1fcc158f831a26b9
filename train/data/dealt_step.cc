// SPDX-License-Identifier: Apache-2.0
#include "train/data/dealt_step.h"

#include <numeric>

#include "common/error.h"

namespace af::train {

void check_member(int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world)
    throw Error::format("dealer: rank {} is not in a world of {}", rank, world);
}

std::vector<int> dealt_to_all(int world) {
  std::vector<int> dealt_as(static_cast<size_t>(world));
  std::iota(dealt_as.begin(), dealt_as.end(), 0);
  return dealt_as;
}

std::vector<int> renumbered(const std::vector<int>& dealt_as, const std::vector<int>& was) {
  std::vector<int> now;
  now.reserve(was.size());
  for (const int old : was)
    now.push_back(old >= 0 && old < static_cast<int>(dealt_as.size())
                      ? dealt_as[static_cast<size_t>(old)]
                      : -1);
  return now;
}

std::vector<int> ranks_now(const std::vector<int>& dealt_as, int dealt_to) {
  std::vector<int> now(static_cast<size_t>(dealt_to), -1);
  for (size_t rank = 0; rank < dealt_as.size(); ++rank)
    if (dealt_as[rank] >= 0 && dealt_as[rank] < dealt_to)
      now[static_cast<size_t>(dealt_as[rank])] = static_cast<int>(rank);
  return now;
}

}  // namespace af::train
