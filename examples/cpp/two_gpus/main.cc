// SPDX-License-Identifier: Apache-2.0
// A model on two GPUs in C++: docs/guide/larger-models.md with libtorch and af.
//
//   af-launch build/examples/two_gpus      in a job with --af-gpus-per-worker=2
//   build/examples/two_gpus                alone; without GPUs both stages are on the CPU
//
// Environment: EPOCHS (5), MICRO_BATCHES (4).
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "af/train/pipeline.h"

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::stol(value) : otherwise;
}

void train() {
  torch::manual_seed(1);
  const at::Tensor x = at::randn({100'000, 20});
  const at::Tensor y = (x.sum(1, /*keepdim=*/true) > 0).to(at::kFloat);

  // 1. Each part of the model goes on a GPU of its own; without GPUs both are on the CPU, and share
  //    its cores.
  const auto devices = af::train::devices_for_stages(2);
  if (devices[0].is_cpu()) at::set_num_threads(std::max(1, at::get_num_threads() / 2));
  torch::nn::Sequential first(torch::nn::Linear(20, 4096), torch::nn::ReLU());
  torch::nn::Linear second(4096, 1);
  af::train::PipelineOptions options;
  options.micro_batches = static_cast<int>(from_environment("MICRO_BATCHES", 4));
  af::train::Pipeline model({af::train::stage("first", first, devices[0]),
                             af::train::stage("second", second, devices[1])},
                            options);
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-3));

  const auto loss_of = [](const af::train::Tensors& outputs, const af::train::Tensors& targets) {
    return at::binary_cross_entropy_with_logits(outputs[0], targets[0]);
  };
  const int64_t epochs = from_environment("EPOCHS", 5);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    at::Tensor loss;
    const at::Tensor order = at::randperm(x.size(0));
    for (const at::Tensor& rows : order.split(512)) {
      // 2. The data follows the model from one GPU to the other, in micro-batches, so that both
      //    have work at once. The gradients are those of the whole batch.
      model.zero_grad();
      loss = model.step({x.index_select(0, rows)}, {y.index_select(0, rows)}, loss_of);
      adam.step();
    }
    std::printf("epoch %ld: loss %.3f\n", epoch, loss.item<double>());
  }
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whole lines at once, also into a pipe
  try {
    train();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "two_gpus: %s\n", error.what());
    return 1;
  }
}
