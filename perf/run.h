// SPDX-License-Identifier: Apache-2.0
// What one rank of af-perf does: form the world, measure every row, print the table on rank 0.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "collectives/backend.h"

namespace af::perf {

struct Request {
  std::vector<std::size_t> sizes;
  std::vector<OperationKind> kinds;
  std::vector<DataType> types;
  std::vector<ReduceOp> reductions;
  int iterations = 20;
  int warmup = 5;
  int root = 0;
  bool check = true;
  bool blocking = false;
  bool foreign = false;  // ordinary memory instead of the communicator's
};

// Returns the exit code: 0, or 1 if an element was wrong. Throws what the communicator throws.
int run(const Options& options, const Request& request);

}  // namespace af::perf
