// SPDX-License-Identifier: Apache-2.0
// How NCCL expresses a reduction of ours. Pure.
#pragma once

#include <nccl.h>

#include <cstddef>

#include "af/communicator.h"

namespace af::nccl {

ncclDataType_t nccl_type(DataType type);

// Either one of NCCL's own operators, or a sum of inputs multiplied by `scalar`, for which an
// operator has to be made on the communicator.
struct Reduction {
  ncclRedOp_t op = ncclSum;
  bool scaled = false;
  alignas(8) std::byte scalar[8] = {};  // in the type of the elements
};

// Throws CommunicatorError (invalid_argument) for what NCCL has no way to do without a kernel of
// ours: a pre-scale with min or max, or with an average of integers.
Reduction reduction_for(DataType type, ReduceOp op, double pre_scale, int world_size);

}  // namespace af::nccl
