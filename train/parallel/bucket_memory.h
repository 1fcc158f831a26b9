// SPDX-License-Identifier: Apache-2.0
// The memory of a bucket of gradients, and the gradients in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "af/communicator.h"

namespace af::train {

// In memory from Communicator::allocate(), which is reduced without a copy. The tensors keep it
// alive: a model's gradients may outlive the bucket.
struct BucketMemory {
  Buffer buffer;
  at::Tensor flat;                    // all of it
  std::vector<at::Tensor> gradients;  // with the parameters' shapes and strides

  bool empty() const { return !flat.defined(); }
};

// Collective. `elements` of the type and on the device of `like`.
BucketMemory allocate_flat(Communicator& world, int64_t elements, const at::TensorOptions& like);

// Gradients of `parameters` at `offsets` of memory.flat. They share the memory but are no views for
// autograd: libtorch 1.13's Optimizer::zero_grad() throws on views ("Can't detach views in-place").
void place_gradients(BucketMemory& memory, const std::vector<at::Tensor>& parameters,
                     const std::vector<int64_t>& offsets);

}  // namespace af::train
