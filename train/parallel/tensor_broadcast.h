// SPDX-License-Identifier: Apache-2.0
// Tensors from one rank to all, many of them in one operation.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "af/communicator.h"

namespace af::train {

// Collective; as many tensors of the same types and shapes on all ranks. The values of `root` are
// written into the others' tensors. Up to 25 MiB of a type and device travel together. Throws
// CommunicatorError; some tensors may have been written then.
void broadcast_tensors(Communicator& world, const std::vector<at::Tensor>& tensors, int root);

}  // namespace af::train
