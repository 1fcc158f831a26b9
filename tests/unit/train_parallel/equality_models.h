// SPDX-License-Identifier: Apache-2.0
// Models, data and the training of one process that any parallel training must come to: an MLP, a
// small transformer and the guide's model, each a chain of parts.
//
//   for (const EqualityCase& one : equality_cases(at::kDouble)) {
//     const auto alone = train_alone(one, 50);             // by name, after 50 steps of Adam
//     with_threads(one_node(3), [&](Communicator& world) {
//       auto model = one.make();                           // the same numbers at every call
//       for (int64_t step = 0; step < 50; ++step) {
//         const Batch mine = one.share(step, world.rank(), world.world_size());
//         ... one.loss(model->forward(mine.x), mine.y) ... // a mean over the rows of `mine`
//       }
//       EXPECT_LT(largest_difference(values_of(*model), alone), 1e-10);
//     });
//   }
#pragma once

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace af::train::test {

// A part of a chain: the unit of a sharded model, or a stage.
struct PartImpl : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor x) = 0;
};
using Part = std::shared_ptr<PartImpl>;

struct Chain : torch::nn::Module {
  explicit Chain(std::vector<Part> the_parts) : parts(std::move(the_parts)) {
    for (std::size_t i = 0; i < parts.size(); ++i)
      register_module("part" + std::to_string(i), parts[i]);
  }
  at::Tensor forward(at::Tensor x) const {
    for (const Part& part : parts) x = part->forward(x);
    return x;
  }
  std::vector<Part> parts;
};

struct DensePart : PartImpl {
  enum class Then { nothing, relu, tanh };
  DensePart(int64_t in, int64_t out, Then the_then)
      : linear(register_module("linear", torch::nn::Linear(in, out))), then(the_then) {}
  at::Tensor forward(at::Tensor x) override {
    x = linear->forward(x);
    return then == Then::relu ? at::relu(x) : then == Then::tanh ? at::tanh(x) : x;
  }
  torch::nn::Linear linear;
  Then then;
};

struct EmbeddingPart : PartImpl {
  EmbeddingPart(int64_t tokens, int64_t length, int64_t width)
      : token(register_parameter("token", at::empty({tokens, width}))),
        position(register_parameter("position", at::empty({length, width}))) {}
  at::Tensor forward(at::Tensor x) override { return at::embedding(token, x) + position; }
  at::Tensor token;
  at::Tensor position;
};

// Attention that sees no later token, then a layer of four times the width; norms go before.
struct BlockPart : PartImpl {
  BlockPart(int64_t the_width, int64_t the_heads)
      : width(the_width),
        heads(the_heads),
        first_norm(register_module("first_norm", torch::nn::LayerNorm(norm_options()))),
        attention(register_module("attention", torch::nn::Linear(width, 3 * width))),
        project(register_module("project", torch::nn::Linear(width, width))),
        second_norm(register_module("second_norm", torch::nn::LayerNorm(norm_options()))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  torch::nn::LayerNormOptions norm_options() const {
    return torch::nn::LayerNormOptions(std::vector<int64_t>{width});
  }
  at::Tensor forward(at::Tensor x) override {
    const int64_t rows = x.size(0);
    const int64_t length = x.size(1);
    const auto three = attention->forward(first_norm->forward(x)).chunk(3, -1);
    const auto split = [&](const at::Tensor& t) {
      return t.view({rows, length, heads, width / heads}).transpose(1, 2);
    };
    const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
    const at::Tensor scores = at::matmul(split(three[0]), split(three[1]).transpose(-2, -1)) /
                              std::sqrt(static_cast<double>(width / heads));
    const at::Tensor seen =
        at::matmul(at::softmax(scores.masked_fill(later, -1e9), -1), split(three[2]));
    x = x + project->forward(seen.transpose(1, 2).reshape({rows, length, width}));
    return x + down->forward(at::gelu(up->forward(second_norm->forward(x))));
  }
  int64_t width;
  int64_t heads;
  torch::nn::LayerNorm first_norm;
  torch::nn::Linear attention;
  torch::nn::Linear project;
  torch::nn::LayerNorm second_norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};

struct Batch {
  at::Tensor x;
  at::Tensor y;
  int64_t rows() const { return x.size(0); }
};

struct EqualityCase {
  std::string name;
  std::function<std::shared_ptr<Chain>()> make;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& y)> loss;
  at::Tensor x;  // of four batches, which are taken in turn
  at::Tensor y;
  int64_t batch_rows = 0;

  Batch whole(int64_t step) const {
    const int64_t first = step % (x.size(0) / batch_rows) * batch_rows;
    return {x.narrow(0, first, batch_rows), y.narrow(0, first, batch_rows)};
  }
  // Contiguous; the shares differ by a row where the world does not divide the batch.
  Batch share(int64_t step, int rank, int world) const {
    const Batch all = whole(step);
    const int64_t first = batch_rows * rank / world;
    const int64_t last = batch_rows * (rank + 1) / world;
    return {all.x.narrow(0, first, last - first), all.y.narrow(0, first, last - first)};
  }
};

// The numbers come from the names alone: torch's own generator is shared by the threads.
inline void fill_by_name(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    double seed = 0.7;
    for (const char c : item.key()) seed = std::fmod(seed * 1.7 + static_cast<double>(c), 3.0);
    at::Tensor parameter = item.value();
    const double size = parameter.dim() > 1 ? std::sqrt(3.0 / parameter.size(1)) : 0.1;
    const bool norm = item.key().find("norm.weight") != std::string::npos;
    parameter.copy_((at::arange(parameter.numel(), at::kDouble) * (1 + seed))
                        .sin()
                        .mul(size)
                        .add(norm ? 1 : 0)
                        .view(parameter.sizes()));
  }
}

inline std::shared_ptr<Chain> filled_chain(std::vector<Part> parts, at::ScalarType type) {
  auto model = std::make_shared<Chain>(std::move(parts));
  model->to(type);
  fill_by_name(*model);
  return model;
}

inline at::Tensor wave(std::vector<int64_t> sizes, double step, at::ScalarType type) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * step).sin().view(sizes).to(type);
}

// `batch_rows`: 24 is divided by every world up to 4, 26 by 1 and 2 only.
inline std::vector<EqualityCase> equality_cases(at::ScalarType type, int64_t batch_rows = 24) {
  using Then = DensePart::Then;
  const int64_t rows = 4 * batch_rows;
  const auto dense = [](int64_t in, int64_t out, Then then) -> Part {
    return std::make_shared<DensePart>(in, out, then);
  };
  std::vector<EqualityCase> cases;
  cases.push_back(
      {"mlp",
       [=] {
         return filled_chain(
             {dense(6, 32, Then::tanh), dense(32, 24, Then::relu), dense(24, 4, Then::nothing)},
             type);
       },
       [](const at::Tensor& output, const at::Tensor& y) { return at::mse_loss(output, y); },
       wave({rows, 6}, 0.7, type), wave({rows, 4}, 0.31, type), batch_rows});
  // Of 13 tokens, in texts of 8: the next one is to be said.
  const at::Tensor text = (wave({rows, 9}, 1.9, at::kDouble) * 6 + 6.5).to(at::kLong);
  cases.push_back(
      {"transformer",
       [=] {
         return filled_chain(
             {std::make_shared<EmbeddingPart>(13, 8, 16), std::make_shared<BlockPart>(16, 2),
              std::make_shared<BlockPart>(16, 2), dense(16, 13, Then::nothing)},
             type);
       },
       [](const at::Tensor& output, const at::Tensor& y) {
         return at::cross_entropy_loss(output.reshape({-1, output.size(2)}), y.reshape({-1}));
       },
       text.narrow(1, 0, 8).contiguous(), text.narrow(1, 1, 8).contiguous(), batch_rows});
  const at::Tensor x = wave({rows, 20}, 2.3, type);
  cases.push_back(
      {"guide",
       [=] {
         return filled_chain({dense(20, 64, Then::relu), dense(64, 1, Then::nothing)}, type);
       },
       [](const at::Tensor& output, const at::Tensor& y) {
         return at::binary_cross_entropy_with_logits(output, y);
       },
       x, (x.sum(1, true) > 0).to(type), batch_rows});
  return cases;
}

using Values = std::map<std::string, at::Tensor>;

inline Values values_of(const torch::nn::Module& model) {
  Values values;
  for (const auto& item : model.named_parameters())
    values[item.key()] = item.value().detach().clone();
  return values;
}

inline double largest_difference(const Values& a, const Values& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return INFINITY;
    largest = std::max(
        largest,
        (value.to(at::kDouble) - other->second.to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

// One process, the whole batch, stock Adam: the parameters after `steps` steps.
inline Values train_alone(const EqualityCase& one, int64_t steps, double learning_rate = 1e-3) {
  const auto model = one.make();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(learning_rate));
  for (int64_t step = 0; step < steps; ++step) {
    const Batch all = one.whole(step);
    adam.zero_grad();
    one.loss(model->forward(all.x), all.y).backward();
    adam.step();
  }
  return values_of(*model);
}

}  // namespace af::train::test
