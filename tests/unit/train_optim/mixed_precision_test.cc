// SPDX-License-Identifier: Apache-2.0
// All parts together, as a training uses them.
#include <ATen/core/ivalue.h>  // first: with clang the others need it complete

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <vector>

#include "af/train/data_parallel.h"
#include "af/train/flat_optimizer.h"
#include "af/train/grad_scaler.h"
#include "af/train/gradient_norm.h"
#include "af/train/lr_schedule.h"
#include "af/train/precision.h"
#include "tests/unit/collectives/world.h"

namespace af::train {
namespace {

constexpr int64_t kRows = 12, kWidth = 5;

torch::nn::Linear make_model() {
  torch::nn::Linear model(torch::nn::LinearOptions(kWidth, 3));
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters())
    parameter.copy_(
        at::arange(parameter.numel(), parameter.options()).sin().view(parameter.sizes()));
  return model;
}

struct Result {
  std::vector<at::Tensor> parameters;
  std::vector<double> scales;
};

// 20 steps of `world`, each rank with its share of the rows. In step 7 rank 1 alone, or the only
// rank, has a gradient that is infinite.
Result train(Communicator& world, std::optional<double> init_scale, bool flat) {
  auto model = make_model();
  DataParallel replicas(*model, world);
  std::unique_ptr<torch::optim::Optimizer> adam;
  const torch::optim::AdamOptions options(1e-2);
  if (flat)
    adam = std::make_unique<FlatAdam>(model->parameters(), options);
  else
    adam = std::make_unique<torch::optim::Adam>(model->parameters(), options);
  LrSchedule schedule(*adam, warmup_cosine({.warmup_steps = 3, .total_steps = 20}));
  GradScaler scaler({.init_scale = init_scale.value_or(1),
                     .growth_interval = 4,
                     .enabled = init_scale.has_value()});
  replicas.keep("optimizer", *adam);
  replicas.keep(
      "scaler", [&] { return scaler.state(); },
      [&](const c10::IValue& value) { scaler.load(value.toGenericDict()); });
  const auto share = kRows / world.world_size();
  Result result;
  for (int step = 0; step < 20; ++step) {
    schedule.set(replicas.steps());
    const at::Tensor all =
        at::arange(kRows * kWidth, at::TensorOptions(at::kDouble)).mul(0.1 * (step + 1)).cos();
    const at::Tensor rows = all.view({kRows, kWidth}).narrow(0, share * world.rank(), share);
    replicas.zero_grad();
    const at::Tensor loss = model->forward(rows).square().mean();
    const bool overflows = step == 7 && world.rank() == world.world_size() - 1;
    scaler.scale(overflows ? loss * 1e308 * 1e10 : loss).backward();
    replicas.step(share, loss.item<double>(), [&] {
      if (step == 7 && !scaler.enabled()) return;
      scaler.unscale(*adam);
      clip_gradients(*adam, 0.5);
      scaler.step(*adam);
      scaler.update();
    });
    result.scales.push_back(scaler.scale());
  }
  for (const at::Tensor& parameter : model->parameters())
    result.parameters.push_back(parameter.detach().clone());
  return result;
}

double distance(const Result& a, const Result& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    most = std::max(most, (a.parameters[i] - b.parameters[i]).abs().max().item<double>());
  return most;
}

TEST(MixedPrecision, AScaledTrainingIsTheSameWithoutTheStepThatOverflows) {
  std::optional<Result> plain;
  test::with_threads(test::one_node(1),
                     [&](Communicator& world) { plain = train(world, std::nullopt, false); });
  for (const int ranks : {1, 2, 3})
    for (const bool flat : {false, true}) {
      std::vector<std::optional<Result>> all(static_cast<std::size_t>(ranks));
      test::with_threads(test::one_node(ranks), [&](Communicator& world) {
        all[static_cast<std::size_t>(world.rank())] = train(world, 1024, flat);
      });
      EXPECT_LE(distance(*all[0], *plain), 1e-10) << ranks << flat;
      EXPECT_EQ(all[0]->scales[6], 2048);
      EXPECT_EQ(all[0]->scales[7], 1024);
      for (const auto& result : all) {
        EXPECT_EQ(distance(*result, *all[0]), 0);
        EXPECT_EQ(result->scales, all[0]->scales);
      }
    }
}

TEST(MixedPrecision, RanksInBf16KeepTheSameParameters) {
  std::vector<std::optional<Result>> all(2);
  test::with_threads(test::one_node(2), [&](Communicator& world) {
    const auto precision = agree_on_precision(world, at::kCPU, Precision::bf16);
    auto model = make_model();
    model->to(at::kFloat);
    DataParallel replicas(*model, world);
    FlatAdamW adam(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const at::Tensor rows =
        at::arange(kRows * kWidth).to(at::kFloat).cos().view({kRows, kWidth}) * (world.rank() + 1);
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      replicas.zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast(at::kCPU, precision);
        const at::Tensor out = model->forward(rows);
        EXPECT_EQ(out.scalar_type(), at::kBFloat16);
        loss = out.to(at::kFloat).square().mean();
      }
      loss.backward();
      last = replicas.step(kRows, loss, adam).loss;
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.8 * first);
    Result result;
    for (const at::Tensor& parameter : model->parameters())
      result.parameters.push_back(parameter.detach().clone());
    all[static_cast<std::size_t>(world.rank())] = result;
  });
  EXPECT_EQ(distance(*all[0], *all[1]), 0);
}

}  // namespace
}  // namespace af::train
