// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a reduction: several inputs, element by element, into several equal outputs.
#pragma once

#include <cstddef>

#include "af/communicator.h"

namespace af {

struct Reduction {
  DataType type;
  ReduceOp op;
  const void* const* inputs;
  // One factor per input, applied before combining; null: all 1.
  const double* scales = nullptr;
  int input_count;
  void* const* outputs;
  int output_count;
  std::size_t count;  // elements
  // For avg, on the pass that completes it: the sum is divided by it. 1 otherwise.
  int divisor = 1;
};

// Combines in the order of the inputs, so that equal inputs give equal bits. An output may be one
// of the inputs; no other overlap. f16 and bf16 are widened to f32, combined, and rounded to
// nearest even once; integers wrap.
void reduce(const Reduction& reduction);

}  // namespace af
