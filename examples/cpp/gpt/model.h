// SPDX-License-Identifier: Apache-2.0
// A small language model of GPT's kind: it gives, for each byte of a text, the odds of the next
// one.
//
// Pre-norm transformer blocks (Radford et al. 2019): attention to what came before, then a
// feed-forward layer, each added to what goes past it. About 0.14 M parameters as shipped.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace gpt {

struct Shape {
  int64_t vocabulary = 256;  // bytes
  int64_t context = 64;      // positions: the most bytes that it sees at once
  int64_t width = 64;
  int64_t heads = 4;
  int64_t layers = 2;
};

// [n, t, width] to the same. Each position attends to itself and to those before it.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const Shape& shape);
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t heads_;
  torch::nn::Linear in_{nullptr};  // queries, keys and values side by side
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Attention);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const Shape& shape);
  at::Tensor forward(at::Tensor x);

 private:
  torch::nn::LayerNorm norm1_{nullptr};
  Attention attention_{nullptr};
  torch::nn::LayerNorm norm2_{nullptr};
  torch::nn::Linear up_{nullptr};
  torch::nn::Linear down_{nullptr};
};
TORCH_MODULE(Block);

// Tokens [n, t], int64, t <= context, to logits [n, t, vocabulary].
class ModelImpl : public torch::nn::Module {
 public:
  explicit ModelImpl(const Shape& shape);
  at::Tensor forward(const at::Tensor& tokens);
  int64_t context() const { return shape_.context; }
  int64_t parameter_count() const;

 private:
  Shape shape_;
  torch::nn::Embedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Model);

}  // namespace gpt
