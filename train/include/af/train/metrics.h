// SPDX-License-Identifier: Apache-2.0
// Sums over ranks, for metrics that are exact over all of a data set: sum the losses and the counts
// of each rank, then divide once.
#pragma once

#include <vector>

#include "af/communicator.h"
#include "af/export.h"

namespace af::train {

// Element by element, the same on all ranks. Collective: all ranks give as many values. Counts are
// exact up to 2^53. Throws CommunicatorError.
AF_PUBLIC std::vector<double> sum_over_ranks(Communicator& world, std::vector<double> values);

}  // namespace af::train
