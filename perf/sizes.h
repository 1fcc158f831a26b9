// SPDX-License-Identifier: Apache-2.0
// Which sizes af-perf measures, and how time and size become bandwidth. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "collectives/backend.h"

namespace af::perf {

// "8", "64K", "1M", "25MiB", "2G" in bytes (powers of 1024). Throws Error.
std::size_t parse_bytes(const std::string& text);

// begin, begin * factor, … up to end. factor > 1, begin <= end; throws Error otherwise.
std::vector<std::size_t> sizes_between(std::size_t begin, std::size_t end, double factor);

// The shape of one measured operation. As nccl-tests has it: `bytes` is the larger of input and
// output of a rank, rounded down to whole elements; `count` is what the call gets.
struct Shape {
  std::size_t bytes;
  std::size_t count;
};
Shape shape_of(OperationKind kind, std::size_t bytes, std::size_t element, int world_size);

// GB/s (1e9) of a rank's data, and what the links see, independent of the number of ranks:
// https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
double algorithm_bandwidth(std::size_t bytes, double seconds);
double bus_factor(OperationKind kind, int world_size);

}  // namespace af::perf
