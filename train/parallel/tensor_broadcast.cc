// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/tensor_broadcast.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <utility>

namespace af::train {
namespace {

constexpr std::size_t kTogether = std::size_t{25} << 20;

void broadcast(Communicator& world, const at::Tensor& tensor, int root) {
  world.broadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), DataType::u8, root)
      .synchronize();
}

void broadcast_together(Communicator& world, const std::vector<at::Tensor>& tensors, int root) {
  if (tensors.size() == 1 && tensors.front().is_contiguous())
    return broadcast(world, tensors.front(), root);
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  const at::Tensor flat = at::cat(rows);
  broadcast(world, flat, root);
  if (world.rank() == root) return;
  int64_t offset = 0;
  for (at::Tensor tensor : tensors) {
    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void broadcast_tensors(Communicator& world, const std::vector<at::Tensor>& tensors, int root) {
  const at::NoGradGuard no_grad;
  struct Waiting {
    std::vector<at::Tensor> tensors;
    std::size_t bytes = 0;
  };
  std::map<std::pair<int, int>, Waiting> waiting;  // by type and device
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    Waiting& alike = waiting[{static_cast<int>(tensor.scalar_type()), tensor.device().index()}];
    alike.tensors.push_back(tensor.detach());
    alike.bytes += tensor.nbytes();
    if (alike.bytes < kTogether) continue;
    broadcast_together(world, alike.tensors, root);
    alike = {};
  }
  for (const auto& [key, alike] : waiting)
    if (!alike.tensors.empty()) broadcast_together(world, alike.tensors, root);
}

}  // namespace af::train
