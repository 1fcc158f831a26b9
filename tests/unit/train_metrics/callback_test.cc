// SPDX-License-Identifier: Apache-2.0
#include "af/train/callback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/collectives/world.h"

namespace af::train {
namespace {

// Writes down what it was called with.
class Diary : public Callback {
 public:
  explicit Diary(std::vector<std::string>& lines) : lines_(lines) {}
  void on_start(const StartInfo& info) override { add("start", info.step); }
  void on_step(const StepInfo& info) override { add("step", info.step); }
  void on_epoch(const EpochInfo& info) override { add("epoch", info.epoch); }
  void on_report(const ReportInfo& info) override { add("report", int64_t(info.metrics.at("x"))); }
  void on_checkpoint(const CheckpointInfo& info) override { add("checkpoint", info.step); }
  void on_world_change(const WorldChangeInfo& info) override { add("world", info.now); }
  void on_end(const EndInfo& info) override { add("end", info.step); }
  void on_exception(const std::string& what) override { lines_.push_back("exception " + what); }

 private:
  void add(const std::string& event, int64_t value) {
    lines_.push_back(event + " " + std::to_string(value));
  }
  std::vector<std::string>& lines_;
};

class Failing : public Callback {
 public:
  explicit Failing(std::vector<std::string>& lines) : lines_(lines) {}
  void on_step(const StepInfo& info) override {
    lines_.push_back("failing " + std::to_string(info.step));
    if (info.step == 2) throw std::runtime_error("the disk is full");
  }

 private:
  std::vector<std::string>& lines_;
};

class StopAt : public Callback {
 public:
  explicit StopAt(int64_t step) : step_(step) {}
  void on_step(const StepInfo& info) override {
    if (info.step >= step_) throw StopTraining("step " + std::to_string(info.step));
  }

 private:
  int64_t step_;
};

TEST(Callbacks, EachHearsOfEveryTurn) {
  std::vector<std::string> lines;
  Callbacks callbacks;
  EXPECT_TRUE(callbacks.empty());
  callbacks.add(nullptr);
  EXPECT_TRUE(callbacks.empty());
  callbacks.add(std::make_shared<Diary>(lines));
  callbacks.start({0, 2, 7});
  callbacks.step({8, 0, 64, 0.5});
  callbacks.epoch({1, 8});
  callbacks.report({8, 1, {{"x", 5}}});
  callbacks.checkpoint({"/x", 9, 0.1});
  callbacks.world_change({0, 2, 3, 8});
  callbacks.end({EndInfo::How::finished, 10});
  EXPECT_EQ(lines, (std::vector<std::string>{"start 7", "step 8", "epoch 1", "report 5",
                                             "checkpoint 9", "world 3", "end 10"}));
}

TEST(Callbacks, OneThatThrowsIsToldOnceAndRemovedTheOthersGoOn) {
  std::vector<std::string> lines;
  Callbacks callbacks;
  callbacks.add(std::make_shared<Failing>(lines));
  callbacks.add(std::make_shared<Diary>(lines));
  testing::internal::CaptureStderr();
  for (int64_t step = 1; step <= 3; ++step) callbacks.step({step});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines,
            (std::vector<std::string>{"failing 1", "step 1", "failing 2", "step 2", "step 3"}));
  EXPECT_NE(said.find("Failing: on_step: the disk is full"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_FALSE(callbacks.stop_asked());
}

TEST(Callbacks, StopTrainingIsARequestAndNoFailure) {
  std::vector<std::string> lines;
  Callbacks callbacks;
  callbacks.add(std::make_shared<StopAt>(2));
  callbacks.add(std::make_shared<Diary>(lines));
  testing::internal::CaptureStderr();
  callbacks.step({1});
  EXPECT_FALSE(callbacks.stop_asked());
  callbacks.step({2});
  callbacks.step({3});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(callbacks.stop_asked());
  EXPECT_EQ(callbacks.stop_reason(), "step 2");
  EXPECT_EQ(lines.size(), 3U);
}

TEST(Callbacks, WhatIsReportedFromWithinOneReachesAll) {
  class Reporter : public Callback {
   public:
    explicit Reporter(Callbacks& to) : to_(to) {}
    void on_step(const StepInfo& info) override { to_.report({info.step, 0, {{"x", 4}}}); }

   private:
    Callbacks& to_;
  };
  std::vector<std::string> lines;
  Callbacks callbacks;
  callbacks.add(std::make_shared<Reporter>(callbacks));
  callbacks.add(std::make_shared<Diary>(lines));
  callbacks.step({1});
  EXPECT_EQ(lines, (std::vector<std::string>{"report 4", "step 1"}));
}

TEST(Callbacks, AnExceptionIsToldOnItsWay) {
  std::vector<std::string> lines;
  Callbacks callbacks;
  callbacks.add(std::make_shared<Diary>(lines));
  callbacks.watch([] {});
  EXPECT_THROW(callbacks.watch([] { throw std::runtime_error("no more rows"); }),
               std::runtime_error);
  EXPECT_EQ(lines, std::vector<std::string>{"exception no more rows"});
}

TEST(Callbacks, CallsComeOneAtATimeFromWhateverThread) {
  std::vector<std::string> lines;  // not thread-safe: that is the point
  Callbacks callbacks;
  callbacks.add(std::make_shared<Diary>(lines));
  std::thread saver([&] {
    for (int64_t step = 0; step < 2000; ++step) callbacks.checkpoint({"/x", step, 0});
  });
  for (int64_t step = 0; step < 2000; ++step) callbacks.step({step});
  saver.join();
  EXPECT_EQ(lines.size(), 4000U);
}

TEST(Callbacks, AllRanksStopAtTheSameStepThoughOneAsks) {
  std::vector<int64_t> stopped(3, -1);
  test::with_threads(test::one_node(3), [&](Communicator& world) {
    Callbacks callbacks;
    if (world.rank() == 1) callbacks.add(std::make_shared<StopAt>(4));
    for (int64_t step = 1; step <= 10; ++step) {
      callbacks.step({step});
      const bool stop = callbacks.stop_agreed([&](std::vector<double> mine) {
        world.all_reduce(mine.data(), mine.data(), mine.size(), DataType::f64).synchronize();
        return mine;
      });
      if (stop) {
        stopped[static_cast<std::size_t>(world.rank())] = step;
        break;
      }
    }
  });
  EXPECT_EQ(stopped, (std::vector<int64_t>{4, 4, 4}));
}

}  // namespace
}  // namespace af::train
