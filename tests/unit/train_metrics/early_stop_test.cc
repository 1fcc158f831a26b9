// SPDX-License-Identifier: Apache-2.0
#include "af/train/early_stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/error.h"

namespace af::train {
namespace {

using Mode = EarlyStopOptions::Mode;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(EarlyStop, StopsWithThePatienceUsedUp) {
  const struct {
    const char* what;
    EarlyStopOptions options;
    std::vector<double> values;
    int stops_at;  // -1: never
    double best;
  } cases[] = {
      {"falls for ever", {Mode::min, 2, 0}, {5, 4, 3, 2, 1}, -1, 1},
      {"rises from the second on", {Mode::min, 2, 0}, {5, 6, 7, 1}, 2, 5},
      {"becomes better in time", {Mode::min, 2, 0}, {5, 6, 4, 6, 3, 9}, -1, 3},
      {"the same is not better", {Mode::min, 3, 0}, {5, 5, 5, 5, 5}, 3, 5},
      {"by too little", {Mode::min, 2, 0.5}, {5, 4.8, 4.6, 4.4}, 2, 5},
      {"little by little is enough", {Mode::min, 3, 0.5}, {5, 4.8, 4.4, 4.2, 4.0}, -1, 4.4},
      {"exactly min_delta is not more", {Mode::min, 1, 0.5}, {5, 4.5}, 1, 5},
      {"max", {Mode::max, 2, 0}, {0.5, 0.6, 0.6, 0.5}, 3, 0.6},
      {"patience of 1", {Mode::max, 1, 0}, {0.5, 0.5}, 1, 0.5},
      {"a NaN is not better", {Mode::min, 2, 0}, {kNaN, kNaN, 1}, 1, kNaN},
      {"a NaN in between", {Mode::min, 2, 0}, {3, kNaN, 2, kNaN, kNaN}, 4, 2},
      {"from infinity", {Mode::min, 2, 0}, {kInfinity, kInfinity, 7, 6}, -1, 6},
  };
  for (const auto& one : cases) {
    EarlyStop stop("loss", one.options);
    int stopped_at = -1;
    for (std::size_t i = 0; i < one.values.size() && stopped_at < 0; ++i)
      if (stop.update(one.values[i])) stopped_at = static_cast<int>(i);
    EXPECT_EQ(stopped_at, one.stops_at) << one.what;
    EXPECT_EQ(stop.stopped(), one.stops_at >= 0) << one.what;
    if (std::isnan(one.best))
      EXPECT_TRUE(std::isnan(stop.best())) << one.what;
    else
      EXPECT_EQ(stop.best(), one.best) << one.what;
  }
}

TEST(EarlyStop, GoesOnFromItsValues) {
  EarlyStop before("loss", {Mode::min, 2, 0});
  EXPECT_FALSE(before.update(1));
  EXPECT_FALSE(before.update(2));
  EarlyStop behind("loss", {Mode::min, 2, 0});
  std::copy_n(before.values(), EarlyStop::kValues, behind.values());
  EXPECT_EQ(behind.best(), 1);
  EXPECT_TRUE(behind.update(1.5));
  EXPECT_TRUE(behind.update(0)) << "it was over already";
  EXPECT_EQ(behind.best(), 1);
}

TEST(EarlyStop, AsCallbackItAsksToStopWithAReason) {
  Callbacks callbacks;
  callbacks.add(std::make_shared<EarlyStop>("accuracy", EarlyStopOptions{Mode::max, 2, 0}));
  callbacks.report({1, 0, {{"accuracy", 0.5}}});
  callbacks.report({2, 0, {{"loss", 0.1}}});
  callbacks.report({3, 0, {{"accuracy", 0.5}}});
  EXPECT_FALSE(callbacks.stop_asked());
  callbacks.report({4, 0, {{"accuracy", 0.4}, {"loss", 0.1}}});
  EXPECT_TRUE(callbacks.stop_asked());
  EXPECT_EQ(callbacks.stop_reason(), "no better accuracy than 0.5 in 2 reports");
}

TEST(EarlyStop, ATrainingThatWasOverIsNotGoneOnWith) {
  const auto stop = std::make_shared<EarlyStop>("loss", EarlyStopOptions{Mode::min, 1, 0});
  stop->update(1);
  Callbacks running;
  running.add(stop);
  running.start({});
  EXPECT_FALSE(running.stop_asked());
  stop->update(1);  // as it comes out of a checkpoint
  Callbacks over;
  over.add(stop);
  over.start({});
  EXPECT_TRUE(over.stop_asked());
}

TEST(EarlyStop, OptionsWithoutAMeaningAreRefused) {
  EXPECT_THROW(EarlyStop("loss", {Mode::min, 0, 0}), Error);
  EXPECT_THROW(EarlyStop("loss", {Mode::min, 1, -1}), Error);
  EXPECT_THROW(EarlyStop("loss", {Mode::min, 1, kNaN}), Error);
}

}  // namespace
}  // namespace af::train
