// SPDX-License-Identifier: Apache-2.0
#include "af/train/background_saver.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <condition_variable>
#include <mutex>

#include "common/error.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

State make(double value) {
  State inner = make_state();
  inner.insert("weight", at::full({3, 2}, value, at::kDouble));
  State state = make_state();
  state.insert("model", inner);
  state.insert("epoch", static_cast<int64_t>(value));
  return state;
}

double value_in(const Checkpoint& checkpoint) {
  const State state = read_state(checkpoint.path / "state.pt");
  const at::Tensor weight = state.at("model").toGenericDict().at("weight").toTensor();
  EXPECT_EQ(weight.sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_TRUE(weight.eq(weight[0][0]).all().item<bool>());
  EXPECT_EQ(weight[0][0].item<double>(), state.at("epoch").toInt());
  return weight[0][0].item<double>();
}

// Holds the saver's thread in its callback.
class Gate {
 public:
  void hold() {
    std::unique_lock lock(mutex_);
    inside_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void wait_inside() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false;
  bool open_ = false;
};

class BackgroundSaverTest : public testing::Test {
 protected:
  CheckpointDirectory directory() { return CheckpointDirectory(temporary_ / "checkpoints", 5); }
  TemporaryDirectory temporary_;
};

TEST_F(BackgroundSaverTest, WritesWhatTheStateWasAtTheCall) {
  BackgroundSaver saver(directory());
  State state = make(1);
  for (int64_t step = 1; step <= 4; ++step) {
    state.insert_or_assign("epoch", step);
    EXPECT_TRUE(saver.save(step, state));
    // The training goes on and changes its tensors in place.
    state.at("model").toGenericDict().at("weight").toTensor().add_(1);
  }
  saver.flush();
  for (int64_t step = 1; step <= 4; ++step) {
    const Checkpoint one{directory().root() / ("step-00000000000" + std::to_string(step)), step};
    EXPECT_FALSE(fault_of_checkpoint(one));
    EXPECT_EQ(value_in(one), static_cast<double>(step));
  }
}

TEST_F(BackgroundSaverTest, TellsWhenACheckpointIsOnDisk) {
  std::vector<int64_t> told;
  double longest = -1;
  {
    BackgroundSaver saver(directory(), [&](const Checkpoint& checkpoint, double seconds) {
      EXPECT_FALSE(fault_of_checkpoint(checkpoint));
      told.push_back(checkpoint.step);
      longest = std::max(longest, seconds);
    });
    saver.save(3, make(3));
    saver.save(7, make(7));
  }  // the destructor waits
  EXPECT_EQ(told, (std::vector<int64_t>{3, 7}));
  EXPECT_GT(longest, 0);
}

TEST_F(BackgroundSaverTest, TheNextSaveIsLeftOutOrWaits) {
  Gate gate;
  BackgroundSaver saver(directory(), [&](const Checkpoint& checkpoint, double) {
    if (checkpoint.step == 1) gate.hold();
  });
  saver.save(1, make(1));
  gate.wait_inside();
  EXPECT_FALSE(saver.save(2, make(2), BackgroundSaver::Busy::skip));
  gate.open();
  EXPECT_TRUE(saver.save(3, make(3)));
  saver.flush();
  EXPECT_EQ(directory().find_newest()->step, 3);
  EXPECT_FALSE(fs::exists(directory().root() / "step-000000000002"));
  EXPECT_TRUE(saver.save(4, make(4), BackgroundSaver::Busy::skip));
  saver.flush();
  EXPECT_EQ(value_in(*directory().find_newest()), 4);
}

TEST_F(BackgroundSaverTest, AFailureIsReportedOnceAndTheNextSaveTriesAgain) {
  bool fails = true;
  BackgroundSaver saver(directory(), [&](const Checkpoint&, double) {
    if (fails) throw Error("no space");
  });
  saver.save(1, make(1));
  EXPECT_THROW(saver.flush(), Error);
  saver.flush();
  saver.save(2, make(2));
  EXPECT_THROW(saver.save(3, make(3)), Error);
  fails = false;
  EXPECT_TRUE(saver.save(4, make(4)));
  saver.flush();
}

TEST_F(BackgroundSaverTest, ADirectoryThatCannotBeMadeIsNamed) {
  BackgroundSaver saver(CheckpointDirectory("/proc/nowhere", 2));
  saver.save(1, make(1));
  try {
    saver.flush();
    FAIL() << "saved below /proc";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot make /proc/nowhere"), std::string::npos);
  }
}

TEST_F(BackgroundSaverTest, AnErrorNobodyAskedForIsPrinted) {
  testing::internal::CaptureStderr();
  {
    BackgroundSaver saver(CheckpointDirectory("/proc/nowhere", 2));
    saver.save(1, make(1));
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("af: cannot make /proc/nowhere"),
            std::string::npos);
}

TEST_F(BackgroundSaverTest, AStateOfAnotherShapeMayFollow) {
  BackgroundSaver saver(directory());
  saver.save(1, make(1));
  State other = make_state();
  other.insert("model", at::arange(5));
  saver.save(2, other);
  saver.flush();
  const State read = read_state(directory().find_newest()->path / "state.pt");
  EXPECT_TRUE(read.at("model").toTensor().equal(at::arange(5)));
}

}  // namespace
}  // namespace af::train
