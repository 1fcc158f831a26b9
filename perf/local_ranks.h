// SPDX-License-Identifier: Apache-2.0
// af-perf --ranks N: the ranks are children of one process on this machine.
#pragma once

#include <functional>

namespace af::perf {

// Forks `count` children, each of which runs body(rank) and exits with its result. Returns 0 if all
// did, else the first code that was not 0 (128 + signal for a killed one). When one fails the
// others are ended: they would wait for it. They also end when this process does.
int run_local_ranks(int count, const std::function<int(int rank)>& body);

}  // namespace af::perf
