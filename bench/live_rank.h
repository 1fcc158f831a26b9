// SPDX-License-Identifier: Apache-2.0
// A rank in C++ for bench/live_ranks.py: the models and data of its trainings, and how it is
// driven.
#pragma once

#include <ATen/Functions.h>
#include <fmt/core.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace af::bench {

// "guide": the model of the guide, 512 rows a rank; "25m": 25.2 M parameters, 32 rows a rank.
class Task {
 public:
  explicit Task(const std::string& name)
      : Task(name == "guide" ? Task(512, {20, 64, 1}) : Task(32, {1024, 4096, 4096, 1024, 1})) {}

  // Rows and labels, {batch, width} and {batch, 1}, in turn those of twenty batches.
  std::pair<at::Tensor, at::Tensor> next() {
    const int64_t first = std::exchange(at_row_, (at_row_ + batch) % rows_.size(0));
    return {rows_.narrow(0, first, batch), labels_.narrow(0, first, batch)};
  }
  at::Tensor next_loss() {
    const auto [x, y] = next();
    return at::binary_cross_entropy_with_logits(model->forward(x), y);
  }

  const int64_t batch;
  torch::nn::Sequential model;

 private:
  Task(int64_t rows_of_a_batch, const std::vector<int64_t>& widths)
      : batch(rows_of_a_batch),
        rows_(at::randn({batch * 20, widths.front()})),
        labels_((rows_.sum(1, true) > 0).to(at::kFloat)) {
    for (std::size_t i = 1; i < widths.size(); ++i) {
      if (i > 1) model->push_back(torch::nn::ReLU());
      model->push_back(torch::nn::Linear(widths[i - 1], widths[i]));
    }
  }

  at::Tensor rows_;
  at::Tensor labels_;
  int64_t at_row_ = 0;
};

// `about`: what the row is to name. Returns when its input ends.
inline void serve(const std::string& about, const std::function<void()>& step) {
  using Clock = std::chrono::steady_clock;
  fmt::print("{{\"about\": \"{}\"}}\n", about);
  std::fflush(stdout);
  int64_t steps = 0;
  while (std::cin >> steps) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    fmt::print("{}\n", std::chrono::duration<double>(Clock::now() - start).count());
    std::fflush(stdout);
  }
}

}  // namespace af::bench
