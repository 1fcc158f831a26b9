// SPDX-License-Identifier: Apache-2.0
// A rank of a data-parallel training in C++ (bench/live_ranks.py says how it is driven).
//
//   ddp_step ddp|elastic|alone guide|25m stock|flat
//     ddp: DistributedDataParallel    elastic: DataParallel    alone: nothing is reduced
//     guide: the model of the guide, 512 rows a rank; 25m: 25.2 M parameters, 32 rows a rank
//     stock: torch::optim::Adam    flat: FlatAdam
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/version.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "af/communicator.h"
#include "af/train/data_parallel.h"
#include "af/train/distributed_data_parallel.h"
#include "af/train/flat_optimizer.h"
#include "af/train/host_memory.h"

namespace {

using torch::nn::Linear;
using torch::nn::ReLU;

struct Task {
  torch::nn::Sequential model;
  int64_t width = 0;
  int64_t batch = 0;
};

Task make_task(const std::string& name) {
  if (name == "guide")
    return {torch::nn::Sequential(Linear(20, 64), ReLU(), Linear(64, 1)), 20, 512};
  return {torch::nn::Sequential(Linear(1024, 4096), ReLU(), Linear(4096, 4096), ReLU(),
                                Linear(4096, 1024), ReLU(), Linear(1024, 1)),
          1024, 32};
}

std::string blas() {
  using Name = char* (*)();
  const auto core = reinterpret_cast<Name>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return core != nullptr ? fmt::format("OpenBLAS for {}", core()) : "no OpenBLAS";
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As bench/live_ranks.py wants it.
void serve(const std::function<void()>& step) {
  fmt::print("{{\"about\": \"C++, torch {}, {}\"}}\n", TORCH_VERSION, blas());
  std::fflush(stdout);
  int64_t steps = 0;
  while (std::cin >> steps) {
    const double start = seconds();
    for (int64_t i = 0; i < steps; ++i) step();
    fmt::print("{}\n", seconds() - start);
    std::fflush(stdout);
  }
}

int run(const std::string& engine, const std::string& name, const std::string& optimizer) {
  at::set_num_threads(1);
  af::train::keep_freed_memory();
  Task task = make_task(name);
  const at::Tensor rows = at::randn({task.batch * 20, task.width});
  const at::Tensor labels = (rows.sum(1, true) > 0).to(at::kFloat);
  int64_t at_row = 0;
  const auto next_loss = [&] {
    const at::Tensor x = rows.narrow(0, at_row, task.batch);
    const at::Tensor y = labels.narrow(0, at_row, task.batch);
    at_row = (at_row + task.batch) % rows.size(0);
    return at::binary_cross_entropy_with_logits(task.model->forward(x), y);
  };

  std::unique_ptr<torch::optim::Optimizer> adam;
  af::train::FlatAdam* flat = nullptr;
  const torch::optim::AdamOptions adam_options(1e-3);
  if (optimizer == "flat") {
    auto made = std::make_unique<af::train::FlatAdam>(task.model->parameters(), adam_options);
    flat = made.get();
    adam = std::move(made);
  } else {
    adam = std::make_unique<torch::optim::Adam>(task.model->parameters(), adam_options);
  }

  if (engine == "alone") {
    auto parameters = task.model->parameters();
    serve([&] {
      for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      next_loss().backward();
      adam->step();
    });
    return 0;
  }
  af::Communicator world = af::Communicator::from_environment();
  if (engine == "ddp") {
    af::train::DistributedDataParallel ddp(*task.model, world);
    if (flat != nullptr) ddp.fold_scale_into(*flat);
    serve([&] {
      ddp.zero_grad();
      ddp.backward(next_loss(), task.batch);
      adam->step();
    });
  } else {
    af::train::DataParallel replicas(*task.model, world);
    serve([&] {
      replicas.zero_grad(task.batch);
      const at::Tensor loss = next_loss();
      loss.backward();
      replicas.step(task.batch, loss, *adam);
    });
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: ddp_step ddp|elastic|alone guide|25m stock|flat\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ddp_step: {}\n", error.what());
    return 1;
  }
}
