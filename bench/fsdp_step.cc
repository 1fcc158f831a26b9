// SPDX-License-Identifier: Apache-2.0
// A rank of a sharded training in C++ (bench/live_ranks.py says how it is driven); the models and
// data are those of bench/ddp_step.cc.
//
//   fsdp_step guide|25m stock|flat [wait]
//     guide: the model of the guide, 512 rows a rank; 25m: 25.2 M parameters, 32 rows a rank
//     stock: torch::optim::Adam    flat: FlatAdam    wait: no unit is gathered ahead
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include "af/communicator.h"
#include "af/train/flat_optimizer.h"
#include "af/train/fully_sharded_data_parallel.h"
#include "af/train/host_memory.h"

namespace {

using torch::nn::Linear;
using torch::nn::ReLU;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As bench/live_ranks.py wants it.
void serve(const std::function<void()>& step) {
  fmt::print("{{\"about\": \"af, sharded\"}}\n");
  std::fflush(stdout);
  int64_t steps = 0;
  while (std::cin >> steps) {
    const double start = seconds();
    for (int64_t i = 0; i < steps; ++i) step();
    fmt::print("{}\n", seconds() - start);
    std::fflush(stdout);
  }
}

void run(const std::string& name, const std::string& optimizer, bool ahead) {
  at::set_num_threads(1);
  af::train::keep_freed_memory();
  const bool guide = name == "guide";
  torch::nn::Sequential model =
      guide ? torch::nn::Sequential(Linear(20, 64), ReLU(), Linear(64, 1))
            : torch::nn::Sequential(Linear(1024, 4096), ReLU(), Linear(4096, 4096), ReLU(),
                                    Linear(4096, 1024), ReLU(), Linear(1024, 1));
  const int64_t batch = guide ? 512 : 32;
  const at::Tensor rows = at::randn({batch * 20, guide ? 20 : 1024});
  const at::Tensor labels = (rows.sum(1, true) > 0).to(at::kFloat);

  af::Communicator world = af::Communicator::from_environment();
  af::train::FullyShardedOptions options;
  options.units = af::train::units_of<torch::nn::LinearImpl>(*model);
  options.prefetch = ahead;
  af::train::FullyShardedDataParallel fsdp(*model, world, options);
  std::unique_ptr<torch::optim::Optimizer> adam;
  if (optimizer == "flat")
    adam =
        std::make_unique<af::train::FlatAdam>(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
  else
    adam = std::make_unique<torch::optim::Adam>(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
  int64_t at_row = 0;
  serve([&] {
    const at::Tensor x = rows.narrow(0, at_row, batch);
    const at::Tensor y = labels.narrow(0, at_row, batch);
    at_row = (at_row + batch) % rows.size(0);
    const at::Tensor loss = fsdp.forward([&] {
      return at::binary_cross_entropy_with_logits(af::train::run_sequential(model, x), y);
    });
    fsdp.backward(loss, batch);
    adam->step();
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: fsdp_step guide|25m stock|flat [wait]\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], argc == 3);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fsdp_step: {}\n", error.what());
    return 1;
  }
}
