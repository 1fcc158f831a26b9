// SPDX-License-Identifier: Apache-2.0
// A rank of a data-parallel training in C++ (bench/live_ranks.py says how it is driven).
//
//   ddp_step ddp|elastic|alone guide|25m stock|flat
//     ddp: DistributedDataParallel    elastic: DataParallel    alone: nothing is reduced
//     guide: the model of the guide, 512 rows a rank; 25m: 25.2 M parameters, 32 rows a rank
//     stock: torch::optim::Adam    flat: FlatAdam
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <torch/optim/adam.h>
#include <torch/version.h>

#include <cstdio>
#include <memory>
#include <string>

#include "af/communicator.h"
#include "af/train/data_parallel.h"
#include "af/train/distributed_data_parallel.h"
#include "af/train/flat_optimizer.h"
#include "af/train/host_memory.h"
#include "bench/live_rank.h"

namespace {

using af::bench::serve;
using af::bench::Task;

std::string blas() {
  using Name = char* (*)();
  const auto core = reinterpret_cast<Name>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return core != nullptr ? fmt::format("OpenBLAS for {}", core()) : "no OpenBLAS";
}

// As the row names it.
std::string about() {
  return fmt::format("C++, torch {}, {}", TORCH_VERSION, blas());
}

int run(const std::string& engine, const std::string& name, const std::string& optimizer) {
  at::set_num_threads(1);
  af::train::keep_freed_memory();
  Task task(name);
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
    serve(about(), [&] {
      for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      task.next_loss().backward();
      adam->step();
    });
    return 0;
  }
  af::Communicator world = af::Communicator::from_environment();
  if (engine == "ddp") {
    af::train::DistributedDataParallel ddp(*task.model, world);
    if (flat != nullptr) ddp.fold_scale_into(*flat);
    serve(about(), [&] {
      ddp.zero_grad();
      ddp.backward(task.next_loss(), task.batch);
      adam->step();
    });
  } else {
    af::train::DataParallel replicas(*task.model, world);
    serve(about(), [&] {
      replicas.zero_grad(task.batch);
      const at::Tensor loss = task.next_loss();
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
