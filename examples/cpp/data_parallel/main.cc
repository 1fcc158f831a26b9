// SPDX-License-Identifier: Apache-2.0
// Data-parallel training in C++: the script of docs/guide/data-parallel.md with libtorch and af.
//
//   af-launch build/examples/data_parallel     as many ranks as the job has workers
//   build/examples/data_parallel               alone: a world of one
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

#include "af/train/background_saver.h"
#include "af/train/data_parallel.h"
#include "af/train/dealer.h"
#include "af/train/session.h"
#include "af/world.h"

namespace {

std::string from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

void train() {
  // 1. Each rank has a GPU of its own, and all have the same data.
  const int local_rank = std::stoi(from_environment("LOCAL_RANK", "0"));
  const at::Device device = torch::cuda::is_available()
                                ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank))
                                : at::Device(at::kCPU);
  torch::manual_seed(1);
  const at::Tensor x = at::randn({100'000, 20}).to(device);
  const at::Tensor y = (x.sum(1, /*keepdim=*/true) > 0).to(at::kFloat);

  torch::nn::Sequential model(torch::nn::Linear(20, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  model->to(device);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(1e-3));

  // 2. The dealer gives each rank its share of every batch of 512 rows.
  af::train::Dealer dealer(x.size(0), 512, /*seed=*/1);

  // 3. The ranks join, behind what takes time, and hand over what makes up the training.
  af::WorldOptions options = af::World::options_from_environment();
  if (device.is_cuda()) options.communicator.device = local_rank;
  af::World world(options);
  af::train::DataParallel replicas(*model, world);
  replicas.keep("optimizer", adam);
  replicas.keep("data", dealer);

  // 4. The training starts from its last checkpoint, if it has one.
  const std::string checkpoints = from_environment("AF_CHECKPOINT_DIR", "");
  af::train::BackgroundSaver saver{af::train::CheckpointDirectory(checkpoints)};
  if (!checkpoints.empty()) replicas.save_with(saver);
  replicas.resume();
  replicas.begin();

  af::train::Session session = af::train::Session::from_environment();
  const int64_t epochs = std::stol(from_environment("EPOCHS", "5"));
  for (int64_t epoch = dealer.epoch(); epoch < epochs; ++epoch) {
    double last = 0;
    while (const auto rows = replicas.next(epoch)) {
      replicas.zero_grad();
      at::Tensor loss;
      if (!rows->empty()) {
        const at::Tensor index = at::tensor(*rows).to(device);
        loss = at::binary_cross_entropy_with_logits(model->forward(x.index_select(0, index)),
                                                    y.index_select(0, index));
        loss.backward();
      }
      // 5. Gradients are averaged over all rows of the batch, and all ranks take the same step.
      last = replicas.step(static_cast<int64_t>(rows->size()), loss, adam).loss;
    }
    // 6. The first rank reports the epoch, and saves a checkpoint.
    if (world.view().rank == 0) {
      std::printf("epoch %ld: loss %.4f, %d ranks\n", epoch, last, world.view().world_size);
      session.report(replicas.steps(), epoch, {{"loss", last}});
    }
    replicas.checkpoint();
  }
  replicas.finish();
  if (world.view().rank == 0 && !checkpoints.empty())
    std::printf("checkpoint %s\n", saver.directory().path_of(replicas.steps()).c_str());
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whole lines at once, also into a pipe
  try {
    train();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel: %s\n", error.what());
    return 1;
  }
}
