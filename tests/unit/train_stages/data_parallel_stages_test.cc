// SPDX-License-Identifier: Apache-2.0
// Both at once: ranks of two stages each.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "af/train/data_parallel.h"
#include "af/train/pipeline.h"
#include "tests/unit/collectives/world.h"

namespace af::train {
namespace {

namespace nn = torch::nn;

TEST(PipelineInDataParallel, GradientsAreThoseOfTheWholeBatch) {
  torch::manual_seed(17);
  const at::Tensor x = at::randn({11, 6}, at::kDouble);
  const at::Tensor y = at::randn({11, 6}, at::kDouble);
  const int64_t first_of_rank[] = {0, 7, 11};  // shares that differ
  test::with_threads(test::one_node(2), [&](Communicator& world) {
    nn::Sequential front(nn::Linear(6, 8), nn::Tanh());
    nn::Linear back(8, 6);
    front->to(at::kDouble);
    back->to(at::kDouble);
    Pipeline model({stage("front", front, at::kCPU), stage("back", back, at::kCPU)}, {3});
    DataParallel replicas(model.module(), world);  // now with the values of rank 0
    const auto expected = torch::autograd::grad({at::mse_loss(back->forward(front->forward(x)), y)},
                                                model.parameters());

    const int64_t begin = first_of_rank[world.rank()];
    const int64_t end = first_of_rank[world.rank() + 1];
    for (int step = 0; step < 2; ++step) {  // the second one finds buckets and gradients there
      replicas.zero_grad();
      at::Tensor loss;
      {
        const NoSync one_by_one = replicas.no_sync();
        loss = model.step({x.slice(0, begin, end)}, {y.slice(0, begin, end)},
                          [](const Tensors& outputs, const Tensors& targets) {
                            return at::mse_loss(outputs[0], targets[0]);
                          });
      }
      replicas.step(end - begin, loss.item<double>(), [&] {
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_LE((model.parameters()[i].grad() - expected[i]).abs().max().item<double>(), 1e-12);
      });
    }
  });
}

}  // namespace
}  // namespace af::train
