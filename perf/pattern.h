// SPDX-License-Identifier: Apache-2.0
// Inputs whose results are known: small whole numbers that depend on rank and place.
#pragma once

#include <cstddef>

#include "collectives/backend.h"

namespace af::perf {

// Writes `count` elements of rank `rank`'s input; the first is element `offset` of it.
void fill(void* out, std::size_t count, DataType type, int rank, std::size_t offset = 0);

// How many of `count` elements at `values`, beginning with element `offset` of the reduced result
// of all ranks, are wrong. Sums, minima and maxima are exact; averages may be off by the rounding
// of their type.
std::size_t count_wrong_reduced(const void* values, std::size_t count, DataType type, ReduceOp op,
                                int world_size, std::size_t offset = 0);

// The same for a copy of rank `rank`'s input.
std::size_t count_wrong_copied(const void* values, std::size_t count, DataType type, int rank,
                               std::size_t offset = 0);

}  // namespace af::perf
