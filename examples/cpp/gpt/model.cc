// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/gpt/model.h"

#include <ATen/Functions.h>
#include <torch/nn/init.h>

#include <cmath>
#include <limits>

namespace gpt {

namespace nn = torch::nn;

AttentionImpl::AttentionImpl(const Shape& shape) : heads_(shape.heads) {
  in_ = register_module("in", nn::Linear(shape.width, 3 * shape.width));
  out_ = register_module("out", nn::Linear(shape.width, shape.width));
}

// libtorch 1.13 has no scaled_dot_product_attention for C++: three lines.
at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const int64_t n = x.size(0);
  const int64_t t = x.size(1);
  const int64_t width = x.size(2);
  // [n, t, 3 width] to three of [n, heads, t, width of a head]
  const auto parts =
      in_->forward(x).view({n, t, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const at::Tensor q = parts[0];
  const at::Tensor k = parts[1];
  const at::Tensor v = parts[2];
  const double scale = 1.0 / std::sqrt(static_cast<double>(width / heads_));
  const at::Tensor later = at::ones({t, t}, x.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3))
                                .mul(scale)
                                .masked_fill(later, -std::numeric_limits<double>::infinity());
  const at::Tensor seen = at::matmul(scores.softmax(-1), v);
  return out_->forward(seen.transpose(1, 2).reshape({n, t, width}));
}

BlockImpl::BlockImpl(const Shape& shape) {
  norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({shape.width})));
  attention_ = register_module("attention", Attention(shape));
  norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({shape.width})));
  up_ = register_module("up", nn::Linear(shape.width, 4 * shape.width));
  down_ = register_module("down", nn::Linear(4 * shape.width, shape.width));
}

at::Tensor BlockImpl::forward(at::Tensor x) {
  x = x + attention_->forward(norm1_->forward(x));
  return x + down_->forward(at::gelu(up_->forward(norm2_->forward(x))));
}

ModelImpl::ModelImpl(const Shape& shape) : shape_(shape) {
  tokens_ = register_module("tokens", nn::Embedding(shape.vocabulary, shape.width));
  positions_ = register_module("positions", nn::Embedding(shape.context, shape.width));
  blocks_ = register_module("blocks", nn::ModuleList());
  for (int64_t i = 0; i < shape.layers; ++i) blocks_->push_back(Block(shape));
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({shape.width})));
  head_ = register_module("head",
                          nn::Linear(nn::LinearOptions(shape.width, shape.vocabulary).bias(false)));
  // GPT-2's: narrow, so that the first logits are all about the same.
  for (const auto& item : named_parameters())
    if (item.value().dim() == 2) nn::init::normal_(item.value(), 0, 0.02);
}

at::Tensor ModelImpl::forward(const at::Tensor& tokens) {
  const at::Tensor places = at::arange(tokens.size(1), tokens.options());
  at::Tensor x = tokens_->forward(tokens) + positions_->forward(places);
  for (const auto& block : *blocks_) x = block->as<BlockImpl>()->forward(x);
  return head_->forward(norm_->forward(x));
}

int64_t ModelImpl::parameter_count() const {
  int64_t count = 0;
  for (const at::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

}  // namespace gpt
