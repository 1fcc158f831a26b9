// SPDX-License-Identifier: Apache-2.0
// A model whose parameters are shared out over the GPUs, in C++: docs/guide/larger-models.md with
// libtorch and af.
//
//   af-launch build/examples/fsdp      as many ranks as the job has workers; --af-n-workers=N
//   build/examples/fsdp                alone: a world of one
//
// Environment: EPOCHS (5), AF_CHECKPOINT_DIR (no checkpoints without it).
#include <ATen/Functions.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "af/communicator.h"
#include "af/train/checkpoint.h"
#include "af/train/dealer.h"
#include "af/train/fully_sharded_data_parallel.h"
#include "af/train/session.h"
#include "af/train/state_file.h"

namespace {

std::string from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

void train() {
  const int local_rank = std::stoi(from_environment("LOCAL_RANK", "0"));
  const at::Device device = torch::cuda::is_available()
                                ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank))
                                : at::Device(at::kCPU);
  torch::manual_seed(1);
  const at::Tensor x = at::randn({100'000, 20}).to(device);
  const at::Tensor y = (x.sum(1, /*keepdim=*/true) > 0).to(at::kFloat);
  torch::nn::Sequential model(torch::nn::Linear(20, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));

  af::Options options = af::Communicator::options_from_environment();
  if (device.is_cuda()) options.device = local_rank;
  af::Communicator world(options);
  af::train::Dealer dealer(x.size(0), 512, /*seed=*/1);
  dealer.set_world(world.rank(), world.world_size());

  // 1. Each GPU keeps a share of the parameters, and holds one layer whole at a time.
  af::train::FullyShardedOptions sharded;
  sharded.units = af::train::units_of<torch::nn::LinearImpl>(*model);
  sharded.device = device;
  af::train::FullyShardedDataParallel fsdp(*model, world, sharded);
  torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
  fsdp.keep("optimizer", adam);

  // 2. A checkpoint is loaded through FSDP, whatever number of GPUs has written it.
  const std::string checkpoints = from_environment("AF_CHECKPOINT_DIR", "");
  const af::train::CheckpointDirectory directory(checkpoints);
  int64_t first_epoch = 0;
  if (const auto found = checkpoints.empty() ? std::nullopt : directory.find_newest())
    first_epoch = fsdp.load(found->path / "state.pt").at("epoch").toInt() + 1;

  af::train::Session session = af::train::Session::from_environment();
  const int64_t epochs = std::stol(from_environment("EPOCHS", "5"));
  for (int64_t epoch = first_epoch; epoch < epochs; ++epoch) {
    double last = 0;
    while (const auto rows = dealer.next(epoch)) {
      // 3. Forward and backward go through FSDP, which gathers each layer when its turn comes.
      const at::Tensor index = at::tensor(*rows, at::kLong).to(device);
      const at::Tensor loss = fsdp.forward([&] {
        return at::binary_cross_entropy_with_logits(
            af::train::run_sequential(model, x.index_select(0, index)), y.index_select(0, index));
      });
      last = fsdp.backward(loss, static_cast<int64_t>(rows->size())).loss;
      adam.step();
      dealer.complete();
    }
    // 4. It is saved through FSDP too: layer by layer, so that no GPU and no host has to hold it.
    af::train::State more = af::train::make_state();
    more.insert("epoch", epoch);
    if (!checkpoints.empty()) fsdp.save(directory, (epoch + 1) * dealer.steps_of_epoch(), more);
    if (world.rank() == 0) {
      std::printf("epoch %ld: loss %.4f, %d ranks\n", epoch, last, world.world_size());
      session.report((epoch + 1) * dealer.steps_of_epoch(), epoch, {{"loss", last}});
    }
  }
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whole lines at once, also into a pipe
  try {
    train();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp: %s\n", error.what());
    return 1;
  }
}
