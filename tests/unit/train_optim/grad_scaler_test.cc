// SPDX-License-Identifier: Apache-2.0
#include "af/train/grad_scaler.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "af/train/flat_optimizer.h"
#include "af/train/gradient_norm.h"
#include "common/error.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/train_optim/small_model.h"

namespace af::train {
namespace {

using torch::optim::AdamOptions;

double exact_norm(const SmallModel& model) {
  double squares = 0;
  for (const at::Tensor& parameter : model.parameters())
    squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

std::vector<std::unique_ptr<torch::optim::Optimizer>> both(SmallModel& model) {
  std::vector<std::unique_ptr<torch::optim::Optimizer>> all;
  all.push_back(std::make_unique<torch::optim::Adam>(model.parameters(), AdamOptions(1e-2)));
  all.push_back(std::make_unique<FlatAdam>(model.parameters(), AdamOptions(1e-2)));
  return all;
}

TEST(GradientNorm, IsThatOfAllGradientsTogether) {
  // Plain memory, ATen's lists, and half types.
  for (const bool gaps : {false, true}) {
    SmallModel model(at::kFloat, gaps, 40);
    model.set_gradients(3);
    if (gaps)
      for (const at::Tensor& parameter : model.parameters())
        parameter.mutable_grad() =
            at::stack({parameter.grad(), parameter.grad()}, -1).select(-1, 0);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_NEAR(gradient_norm(sgd).norm, exact_norm(model), 1e-5);
    EXPECT_TRUE(gradient_norm(sgd).finite);
    model.parameters()[2].mutable_grad()[0][5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(gradient_norm(sgd).finite);
  }
  SmallModel half(at::kHalf, false, 40);
  half.set_gradients(3);
  for (const at::Tensor& parameter : half.parameters()) parameter.mutable_grad().mul_(1000);
  torch::optim::SGD sgd(half.parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_NEAR(gradient_norm(sgd).norm / exact_norm(half), 1, 1e-4);
}

TEST(GradientNorm, ClippingMakesItWhatIsAskedForAndLeavesSmallOnesAlone) {
  SmallModel a(at::kDouble), b(at::kDouble);
  torch::optim::Adam stock(a.parameters(), AdamOptions(1e-2));
  FlatAdam flat(b.parameters(), AdamOptions(1e-2));
  for (const double most : {0.5, 1e6}) {
    a.set_gradients(0);
    b.set_gradients(0);
    const double before = exact_norm(a);
    EXPECT_NEAR(clip_gradients(stock, most), before, 1e-12);
    EXPECT_NEAR(clip_gradients(flat, most), before, 1e-12);
    EXPECT_NEAR(gradient_norm(stock).norm, std::min(before, most), 1e-5);
    EXPECT_NEAR(gradient_norm(flat).norm, std::min(before, most), 1e-5);
    stock.step();
    flat.step();
    EXPECT_LE(a.distance(b), 1e-12);
  }
  EXPECT_THROW(clip_gradients(stock, 0), Error);
}

TEST(GradientNorm, OverShardsIsThatOfTheWhole) {
  const double whole = [] {
    SmallModel model(at::kDouble);
    model.set_gradients(1);
    return exact_norm(model);
  }();
  test::with_threads(test::one_node(2), [&](Communicator& world) {
    SmallModel model(at::kDouble);
    model.set_gradients(1);
    // Rank 0 has the first two, rank 1 the last.
    for (const std::size_t i : {0, 1, 2})
      if ((i == 2) != (world.rank() == 1)) model.parameters()[i].mutable_grad() = at::Tensor();
    FlatSgd sgd(model.parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_NEAR(gradient_norm(sgd, &world).norm, whole, 1e-12);
    EXPECT_NEAR(clip_gradients(sgd, whole / 4, &world), whole, 1e-12);
    EXPECT_NEAR(sgd.gradient_factor(), 0.25, 1e-6);
    if (world.rank() == 1)
      model.parameters()[2].mutable_grad()[0][0] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(gradient_norm(sgd, &world).finite);
  });
}

TEST(GradScaler, TheStepIsThatWithoutAScale) {
  for (const std::size_t which : {0, 1}) {
    SmallModel a(at::kDouble), b(at::kDouble);
    torch::optim::Adam stock(a.parameters(), AdamOptions(1e-2));
    auto optimizer = std::move(both(b)[which]);
    GradScaler scaler;
    for (int step = 0; step < 10; ++step) {
      a.set_gradients(step);
      b.set_gradients(step);
      for (const at::Tensor& parameter : b.parameters())
        parameter.mutable_grad().mul_(scaler.scale());
      if (step % 2 == 0) {
        scaler.unscale(*optimizer);
        EXPECT_NEAR(gradient_norm(*optimizer).norm, exact_norm(a), 1e-9);
        clip_gradients(stock, 0.5);
        clip_gradients(*optimizer, 0.5);
      }
      stock.step();
      EXPECT_TRUE(scaler.step(*optimizer));
      scaler.update();
    }
    EXPECT_LE(a.distance(b), 1e-12);
  }
}

TEST(GradScaler, ScalesTheLoss) {
  const at::Tensor loss = at::full({}, 0.5);
  EXPECT_EQ(GradScaler().scale(loss).item<float>(), 32768);
  GradScaler off({.enabled = false});
  EXPECT_EQ(off.scale(loss).item<float>(), 0.5);
  EXPECT_EQ(off.scale(), 1);
}

TEST(GradScaler, AStepWithInfiniteGradientsIsLeftOutAndHalvesTheScale) {
  for (const std::size_t which : {0, 1}) {
    SmallModel model(at::kFloat);
    const SmallModel before(at::kFloat);
    auto optimizer = std::move(both(model)[which]);
    GradScaler scaler;
    model.set_gradients(0);
    model.parameters()[0].mutable_grad()[1][1] = -std::numeric_limits<float>::infinity();
    EXPECT_FALSE(scaler.step(*optimizer));
    scaler.update();
    EXPECT_EQ(scaler.scale(), 32768);
    EXPECT_EQ(model.distance(before), 0);
    EXPECT_TRUE(optimizer->state().empty());
    // What was left out leaves nothing behind for the next step.
    model.set_gradients(0);
    for (const at::Tensor& parameter : model.parameters())
      parameter.mutable_grad().mul_(scaler.scale());
    EXPECT_TRUE(scaler.step(*optimizer));
    scaler.update();
    SmallModel plain(at::kFloat);
    torch::optim::Adam adam(plain.parameters(), AdamOptions(1e-2));
    plain.set_gradients(0);
    adam.step();
    EXPECT_LE(model.distance(plain), 1e-6);
  }
}

TEST(GradScaler, TheScaleGrowsAfterAnIntervalWithoutInfinities) {
  SmallModel model(at::kFloat);
  FlatSgd sgd(model.parameters(), torch::optim::SGDOptions(0));
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  std::vector<double> scales;
  for (const bool finite : {true, true, false, true, true, true, true, true, true}) {
    model.set_gradients(0);
    if (!finite) model.parameters()[1].mutable_grad().fill_(std::nan(""));
    EXPECT_EQ(scaler.step(sgd), finite);
    scaler.update();
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8, 8, 16}));
}

TEST(GradScaler, ItsStateGoesOn) {
  SmallModel model(at::kFloat);
  FlatSgd sgd(model.parameters(), torch::optim::SGDOptions(0));
  GradScaler first({.init_scale = 8, .growth_interval = 3});
  for (int i = 0; i < 2; ++i) {
    model.set_gradients(0);
    first.step(sgd);
    first.update();
  }
  GradScaler second({.growth_interval = 3});
  second.load(first.state());
  EXPECT_EQ(second.scale(), 8);
  model.set_gradients(0);
  second.step(sgd);
  second.update();
  EXPECT_EQ(second.scale(), 16);
  State foreign = make_state();
  EXPECT_THROW(second.load(foreign), Error);
}

TEST(GradScaler, RanksWithShardsAgree) {
  test::with_threads(test::one_node(3), [](Communicator& world) {
    SmallModel model(at::kFloat);
    const SmallModel before(at::kFloat);
    FlatSgd sgd(model.parameters(), torch::optim::SGDOptions(0.1));
    GradScaler scaler;
    model.set_gradients(0);
    if (world.rank() == 1)
      model.parameters()[2].mutable_grad().fill_(std::numeric_limits<float>::infinity());
    EXPECT_FALSE(scaler.step(sgd, &world));
    scaler.update();
    EXPECT_EQ(scaler.scale(), 32768);
    EXPECT_EQ(model.distance(before), 0);
  });
}

TEST(GradScaler, SaysWhatIsWrong) {
  SmallModel model(at::kFloat);
  FlatSgd sgd(model.parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_THROW(GradScaler({.growth_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), Error);
  EXPECT_THROW(GradScaler({.init_scale = 0}), Error);
  GradScaler scaler;
  EXPECT_THROW(scaler.update(), Error);
  model.set_gradients(0);
  scaler.unscale(sgd);
  EXPECT_THROW(scaler.unscale(sgd), Error);
  scaler.step(sgd);
  EXPECT_THROW(scaler.step(sgd), Error);
  scaler.update();
  // A training that diverges ends, and says so, instead of leaving out all steps to come.
  std::string text;
  try {
    for (;;) {
      model.parameters()[0].mutable_grad().fill_(std::nan(""));
      scaler.step(sgd);
      scaler.update();
    }
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("the training itself diverges"), std::string::npos) << text;
}

}  // namespace
}  // namespace af::train
