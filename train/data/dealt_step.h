// SPDX-License-Identifier: Apache-2.0
// Ranks of the world that has dealt a step, while the world changes before it is completed.
#pragma once

#include <vector>

namespace af::train {

// Throws af::Error.
void check_member(int rank, int world);

// By rank of the world of now, the rank in the world that dealt the step: at first the same.
std::vector<int> dealt_to_all(int world);
// The same in the world after it; `was` is that of DataOrder::change_world(). -1: no rows of it.
std::vector<int> renumbered(const std::vector<int>& dealt_as, const std::vector<int>& was);
// By rank of the world that dealt it: the rank in the world of now, -1 for those that are gone.
std::vector<int> ranks_now(const std::vector<int>& dealt_as, int dealt_to);

}  // namespace af::train
