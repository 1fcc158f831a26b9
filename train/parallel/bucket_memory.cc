// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_memory.h"

#include <ATen/Functions.h>

namespace af::train {
namespace {

at::Tensor tensor_in(const Buffer& buffer, int64_t byte_offset, at::IntArrayRef sizes,
                     at::IntArrayRef strides, const at::TensorOptions& options) {
  return at::from_blob(
      static_cast<char*>(buffer.data()) + byte_offset, sizes, strides, [keep = buffer](void*) {},
      options.requires_grad(false));
}

}  // namespace

BucketMemory allocate_flat(Communicator& world, int64_t elements, const at::TensorOptions& like) {
  BucketMemory memory;
  memory.buffer = world.allocate(static_cast<std::size_t>(elements) * like.dtype().itemsize());
  memory.flat = tensor_in(memory.buffer, 0, {elements}, {1}, like);
  return memory;
}

void place_gradients(BucketMemory& memory, const std::vector<at::Tensor>& parameters,
                     const std::vector<int64_t>& offsets) {
  memory.gradients.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    // Autograd's layout contract: a dense parameter's gradient has its strides, others' is
    // contiguous.
    const at::Tensor shape = parameter.is_non_overlapping_and_dense()
                                 ? parameter.detach()
                                 : at::empty(parameter.sizes(), at::TensorOptions(at::kMeta));
    memory.gradients.push_back(
        tensor_in(memory.buffer, offsets[i] * static_cast<int64_t>(parameter.element_size()),
                  shape.sizes(), shape.strides(), parameter.options()));
  }
}

}  // namespace af::train
