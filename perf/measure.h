// SPDX-License-Identifier: Apache-2.0
// One row of the table: an operation at one size, out of place and in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "af/communicator.h"
#include "perf/sizes.h"

namespace af::perf {

struct Plan {
  OperationKind kind = OperationKind::all_reduce;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  Shape shape{};
  int warmup = 5;
  int iterations = 20;
  bool check = true;
  bool blocking = false;  // each call returns when it is done
  int device = -1;
};

struct Figure {
  double seconds = 0;       // of one operation, averaged over iterations and ranks
  std::uint64_t wrong = 0;  // elements, over all ranks; 0 when not checked
};

struct Row {
  Figure out_of_place;
  Figure in_place;
};

// Where the operations work; two areas that do not overlap, each of the largest row's bytes.
struct Area {
  void* first;
  void* second;
};

// Collective: all ranks measure the same plan.
Row measure(Communicator& world, const Plan& plan, const Area& area);

}  // namespace af::perf
