// SPDX-License-Identifier: Apache-2.0
// A training step of a model in two stages, each a thread with one thread for computing: with
// micro-batches, so that both work at once, against the same without, where each waits for the
// other. The same batch, model and gradients; in turn, in this process.
//
// Also against the unsplit model on one thread, which is what handing over costs where there is no
// second device to gain.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "af/train/pipeline.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kWidth = 512;
constexpr int64_t kRows = 1024;

double seconds_of(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(at * static_cast<double>(values.size() - 1))];
}

nn::Sequential make_part() {
  return nn::Sequential(nn::Linear(kWidth, kWidth), nn::ReLU(), nn::Linear(kWidth, kWidth),
                        nn::ReLU(), nn::Linear(kWidth, kWidth), nn::ReLU());
}

at::Tensor loss_of(const af::train::Tensors& outputs, const af::train::Tensors& targets) {
  return at::mse_loss(outputs[0], targets[0]);
}

void compare(const std::string& name, const std::function<void()>& ours, const std::string& peer,
             const std::function<void()>& theirs, int pairs) {
  std::vector<double> mine;
  std::vector<double> others;
  std::vector<double> ratios;
  for (int pair = -2; pair < pairs; ++pair) {
    const double a = seconds_of(ours);
    const double b = seconds_of(theirs);
    if (pair < 0) continue;  // the first ones make memory
    mine.push_back(a);
    others.push_back(b);
    ratios.push_back(b / a);
  }
  const nlohmann::json line = {
      {"name", name},
      {"value", quantile(mine, 0.5) * 1e3},
      {"unit", "ms"},
      {"peer", peer},
      {"peer_value", quantile(others, 0.5) * 1e3},
      {"ratio", quantile(ratios, 0.5)},
      {"spread", fmt::format("quartiles {:.2f} to {:.2f} over {} pairs", quantile(ratios, 0.25),
                             quantile(ratios, 0.75), pairs)}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void run() {
  at::set_num_threads(1);
  nn::Sequential first = make_part();
  nn::Sequential second = make_part();
  const at::Tensor x = at::randn({kRows, kWidth});
  const at::Tensor y = at::randn({kRows, kWidth});
  const auto make = [&](int micro_batches) {
    return std::make_unique<af::train::Pipeline>(
        std::vector{af::train::stage("first", first, at::kCPU),
                    af::train::stage("second", second, at::kCPU)},
        af::train::PipelineOptions{.micro_batches = micro_batches});
  };
  const auto whole = make(1);
  for (const int micro_batches : {4, 8}) {
    const auto model = make(micro_batches);
    compare(
        fmt::format("step of two stages on two cores, {} micro-batches", micro_batches),
        [&] { model->step({x}, {y}, loss_of); }, "the same without micro-batches",
        [&] { whole->step({x}, {y}, loss_of); }, 15);
  }
  compare(
      "step of two stages, no micro-batches", [&] { whole->step({x}, {y}, loss_of); },
      "the unsplit model, one thread",
      [&] { loss_of({second->forward(first->forward(x))}, {y}).backward(); }, 15);
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "pipeline_step: {}\n", error.what());
    return 1;
  }
}
