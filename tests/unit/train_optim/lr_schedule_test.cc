// SPDX-License-Identifier: Apache-2.0
#include "af/train/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "af/train/flat_optimizer.h"
#include "common/error.h"
#include "tests/unit/train_optim/small_model.h"

namespace af::train {
namespace {

using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;

TEST(LrFunction, Constant) {
  EXPECT_EQ(constant_lr().factor(0), 1);
  EXPECT_EQ(constant_lr().factor(1'000'000), 1);
}

TEST(LrFunction, WarmupThenCosine) {
  const auto factor =
      warmup_cosine({.warmup_steps = 4, .total_steps = 12, .end_factor = 0.2}).factor;
  const std::vector<std::pair<int64_t, double>> expected = {
      {0, 0.25}, {1, 0.5}, {3, 1}, {4, 1}, {8, 0.6}, {12, 0.2}, {13, 0.2}, {1'000'000, 0.2}};
  for (const auto& [step, value] : expected) EXPECT_NEAR(factor(step), value, 1e-15) << step;
  EXPECT_NEAR(factor(6), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_EQ(warmup_cosine({.total_steps = 10}).factor(0), 1);
}

TEST(LrFunction, Steps) {
  const auto factor = step_lr(10, 0.5).factor;
  EXPECT_EQ(factor(0), 1);
  EXPECT_EQ(factor(9), 1);
  EXPECT_EQ(factor(10), 0.5);
  EXPECT_EQ(factor(29), 0.25);
}

TEST(LrFunction, SaysWhatIsWrong) {
  EXPECT_THROW(warmup_cosine({.warmup_steps = 10, .total_steps = 10}), Error);
  EXPECT_THROW(warmup_cosine({.warmup_steps = -1, .total_steps = 10}), Error);
  EXPECT_THROW(warmup_cosine({.total_steps = 10, .end_factor = -1}), Error);
  EXPECT_THROW(step_lr(0), Error);
  EXPECT_THROW(step_lr(1, -1), Error);
  EXPECT_THROW(lr_function("mine", nullptr), Error);
}

template <typename Adam>
void groups_keep_their_proportion() {
  SmallModel model(at::kFloat);
  const auto all = model.parameters();
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{all[0]}, std::make_unique<AdamOptions>(1e-3));
  groups.emplace_back(std::vector<at::Tensor>{all[1], all[2]}, std::make_unique<AdamOptions>(4e-3));
  Adam adam(std::move(groups));
  LrSchedule schedule(adam, warmup_cosine({.warmup_steps = 4, .total_steps = 12}));
  EXPECT_DOUBLE_EQ(schedule.lr(), 0.25e-3);  // for the first step, without a set()
  schedule.set(8);
  EXPECT_DOUBLE_EQ(adam.param_groups()[0].options().get_lr(), 0.5e-3);
  EXPECT_DOUBLE_EQ(adam.param_groups()[1].options().get_lr(), 2e-3);
  schedule.set(2);  // any order: nothing adds up
  EXPECT_DOUBLE_EQ(schedule.lr(), 0.75e-3);
}

TEST(LrSchedule, GroupsKeepTheirProportion) {
  groups_keep_their_proportion<torch::optim::Adam>();
  groups_keep_their_proportion<FlatAdam>();
}

// A training that is resumed takes the steps that it would have taken.
TEST(LrSchedule, ResumesWithTheRateOfTheStep) {
  const auto steps = [](FlatAdam& adam, LrSchedule& schedule, SmallModel& model, int from, int to) {
    for (int step = from; step < to; ++step) {
      schedule.set(step);
      model.set_gradients(step);
      adam.step();
    }
  };
  const auto cosine = warmup_cosine({.warmup_steps = 3, .total_steps = 20});
  SmallModel a(at::kDouble), b(at::kDouble);
  FlatAdam whole(a.parameters(), AdamOptions(1e-2)), adam(b.parameters(), AdamOptions(1e-2));
  LrSchedule of_whole(whole, cosine), of_first(adam, cosine);
  steps(whole, of_whole, a, 0, 20);
  steps(adam, of_first, b, 0, 11);
  adam.param_groups()[0].options().set_lr(1e-2);  // a new program makes its optimizer so
  LrSchedule of_second(adam, cosine);
  testing::internal::CaptureStderr();
  of_second.load(of_first.state());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_DOUBLE_EQ(of_second.lr(), of_first.lr());
  steps(adam, of_second, b, 11, 20);
  EXPECT_EQ(a.distance(b), 0);
}

TEST(LrSchedule, SaysThatAnotherScheduleGoesOn) {
  SmallModel model(at::kFloat);
  FlatAdam adam(model.parameters(), AdamOptions(1e-3));
  LrSchedule before(adam, step_lr(10, 0.5));
  before.set(25);
  FlatAdam next(model.parameters(), AdamOptions(2e-3));
  LrSchedule after(next, constant_lr());
  testing::internal::CaptureStderr();
  after.load(before.state());
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "the checkpoint's learning rate was times 0.5 every 10 steps times 0.001; the "
                "program's now is constant times 0.002"),
            std::string::npos);
  EXPECT_DOUBLE_EQ(after.lr(), 2e-3);
  EXPECT_THROW(after.load(make_state()), Error);
}

TEST(LrSchedule, AProgramsOwnFunctionIsChecked) {
  SmallModel model(at::kFloat);
  FlatAdam adam(model.parameters(), AdamOptions(1e-3));
  LrSchedule schedule(adam, lr_function("1 / (1 + step)", [](int64_t step) {
                        return step < 100 ? 1.0 / static_cast<double>(1 + step) : std::nan("");
                      }));
  schedule.set(9);
  EXPECT_DOUBLE_EQ(schedule.lr(), 1e-4);
  std::string text;
  try {
    schedule.set(100);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(text,
            "the learning-rate schedule (1 / (1 + step)) gives a factor of nan behind 100 steps");
}

}  // namespace
}  // namespace af::train
