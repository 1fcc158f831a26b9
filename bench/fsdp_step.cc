// SPDX-License-Identifier: Apache-2.0
// A rank of a sharded training in C++ (bench/live_ranks.py says how it is driven).
//
//   fsdp_step guide|25m stock|flat [wait]
//     guide: the model of the guide, 512 rows a rank; 25m: 25.2 M parameters, 32 rows a rank
//     stock: torch::optim::Adam    flat: FlatAdam    wait: no unit is gathered ahead
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <memory>
#include <string>

#include "af/communicator.h"
#include "af/train/flat_optimizer.h"
#include "af/train/fully_sharded_data_parallel.h"
#include "af/train/host_memory.h"
#include "bench/live_rank.h"

namespace {

void run(const std::string& name, const std::string& optimizer, bool ahead) {
  at::set_num_threads(1);
  af::train::keep_freed_memory();
  af::bench::Task task(name);
  af::Communicator world = af::Communicator::from_environment();
  af::train::FullyShardedOptions options;
  options.units = af::train::units_of<torch::nn::LinearImpl>(*task.model);
  options.prefetch = ahead;
  af::train::FullyShardedDataParallel fsdp(*task.model, world, options);
  std::unique_ptr<torch::optim::Optimizer> adam;
  if (optimizer == "flat")
    adam =
        std::make_unique<af::train::FlatAdam>(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
  else
    adam = std::make_unique<torch::optim::Adam>(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
  af::bench::serve("af, sharded", [&] {
    const auto batch = task.next();
    const at::Tensor loss = fsdp.forward([&] {
      return at::binary_cross_entropy_with_logits(
          af::train::run_sequential(task.model, batch.first), batch.second);
    });
    fsdp.backward(loss, task.batch);
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
