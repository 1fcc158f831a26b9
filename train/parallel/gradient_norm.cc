// SPDX-License-Identifier: Apache-2.0
#include "af/train/gradient_norm.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "af/train/flat_optimizer.h"
#include "common/error.h"
#include "train/parallel/flat_kernels.h"
#include "train/parallel/flat_moments.h"

namespace af::train {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kChunk = 1 << 16;  // elements whose squares are added up by themselves

Tensors gradients_of(const torch::optim::Optimizer& optimizer) {
  Tensors all;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) all.push_back(parameter.grad());
  return all;
}

// Chunks are the same whatever the number of threads, and so are the roundings.
SquaresSum plain_squares(const Tensors& plain) {
  struct Chunk {
    const at::Tensor* tensor;
    int64_t offset, count;
  };
  std::vector<Chunk> chunks;
  for (const at::Tensor& tensor : plain)
    for (int64_t offset = 0; offset < tensor.numel(); offset += kChunk)
      chunks.push_back({&tensor, offset, std::min(kChunk, tensor.numel() - offset)});
  std::vector<SquaresSum> parts(chunks.size());
  const InstructionSet set = instruction_sets().back();
  parallel_for(static_cast<int64_t>(chunks.size()), /*grain=*/1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const auto& [tensor, offset, count] = chunks[i];
      const auto elements = static_cast<std::size_t>(count);
      parts[i] = tensor->scalar_type() == at::kFloat
                     ? squares_of(set, tensor->data_ptr<float>() + offset, elements)
                     : squares_of(set, tensor->data_ptr<double>() + offset, elements);
    }
  });
  SquaresSum all;
  for (const SquaresSum& part : parts) {
    all.sum += part.sum;
    all.finite = all.finite && part.finite;
  }
  return all;
}

// On devices, and of half types: ATen's, one list for each type and device.
SquaresSum other_squares(const Tensors& others) {
  std::map<std::tuple<int, int, int>, Tensors> lists;
  for (const at::Tensor& tensor : others) {
    if (tensor.layout() != at::kStrided)
      throw Error("a gradient is sparse: its norm is not to be had, make the gradients dense");
    lists[{static_cast<int>(tensor.scalar_type()), static_cast<int>(tensor.device().type()),
           tensor.device().index()}]
        .push_back(tensor);
  }
  SquaresSum all;
  for (const auto& [kind, list] : lists) {
    const at::ScalarType type = list.front().scalar_type();
    Tensors norms;
    if (type == at::kFloat || type == at::kDouble)
      norms = at::_foreach_norm(list, 2);
    else  // a norm in f16 overflows at once
      for (const at::Tensor& tensor : list) norms.push_back(at::norm(tensor, 2, at::kFloat));
    const double sum = at::stack(norms).to(at::kDouble).square().sum().item<double>();
    all.sum += sum;
    all.finite = all.finite && std::isfinite(sum);
  }
  return all;
}

}  // namespace

GradientNorm gradient_norm(const torch::optim::Optimizer& optimizer, Communicator* shards) {
  const at::NoGradGuard no_grad;
  Tensors plain, others;
  at::Device device = at::kCPU;
  for (const at::Tensor& gradient : gradients_of(optimizer)) {
    device = gradient.device();
    (is_plain(gradient) ? plain : others).push_back(gradient);
  }
  SquaresSum squares = plain_squares(plain);
  if (!others.empty()) {
    const SquaresSum more = other_squares(others);
    squares.sum += more.sum;
    squares.finite = squares.finite && more.finite;
  }
  if (shards != nullptr) {
    // In memory of the parameters' device: NCCL takes no other.
    at::Tensor sums = at::zeros({2}, at::kDouble);
    // Not finite parts stay out: the flag says it, and the sum of the others is a number.
    sums[0] = squares.finite ? squares.sum : 0.0;
    sums[1] = squares.finite ? 0.0 : 1.0;
    sums = sums.to(device);
    shards->all_reduce(sums.data_ptr(), sums.data_ptr(), 2, DataType::f64).synchronize();
    sums = sums.cpu();
    squares.sum = sums[0].item<double>();
    squares.finite = sums[1].item<double>() == 0;
    if (!squares.finite) squares.sum = std::numeric_limits<double>::infinity();
  }
  const auto* flat = dynamic_cast<const FlatOptimizer*>(&optimizer);
  const double factor = flat != nullptr ? std::abs(flat->gradient_factor()) : 1;
  return {std::sqrt(squares.sum) * factor, squares.finite};
}

void scale_gradients(torch::optim::Optimizer& optimizer, double factor) {
  if (factor == 1) return;
  if (auto* flat = dynamic_cast<FlatOptimizer*>(&optimizer); flat != nullptr) {
    flat->scale_gradients(factor);
    return;
  }
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients_of(optimizer)) gradient.mul_(factor);
}

double clip_gradients(torch::optim::Optimizer& optimizer, double most, Communicator* shards) {
  if (!(most > 0)) throw Error::format("clip_gradients: a norm of at most {}", most);
  const double norm = gradient_norm(optimizer, shards).norm;
  // What torch adds, so that the result is at most `most` in spite of rounding.
  scale_gradients(optimizer, std::min(most / (norm + 1e-6), 1.0));
  return norm;
}

}  // namespace af::train
