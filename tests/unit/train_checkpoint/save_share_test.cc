// SPDX-License-Identifier: Apache-2.0
// Several ranks save one checkpoint together: as threads, and as processes that are killed.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "af/train/background_saver.h"
#include "af/train/random_state.h"
#include "common/atomic_file.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"
#include "train/checkpoint/parameter_hash.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

// 3.4 MB: each of three ranks has something to write.
State make(double value) {
  State model = make_state();
  model.insert("weight", at::full({500, 1000}, value));
  model.insert("odd", at::full({777}, value, at::kHalf));
  model.insert("view", at::full({300, 1200}, value).t());
  State state = make_state();
  state.insert("model", model);
  state.insert("step", static_cast<int64_t>(value));
  return state;
}

class SaveShareTest : public testing::Test {
 protected:
  SaveShareTest() { at::set_num_threads(1); }
  CheckpointDirectory directory(int keep = 2) {
    return CheckpointDirectory(temporary_ / "checkpoints", keep, [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(line);
    });
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(temporary_ / "checkpoints"))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  int64_t value_in(const Checkpoint& checkpoint) {
    const State state = read_state(checkpoint.path / "state.pt");
    const int64_t step = state.at("step").toInt();
    for (const auto& entry : state.at("model").toGenericDict()) {
      EXPECT_TRUE(entry.value().toTensor().eq(static_cast<double>(step)).all().item<bool>())
          << entry.key().toStringRef();
    }
    return step;
  }

  TemporaryDirectory temporary_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(SaveShareTest, TheFileIsThatOfOneRank) {
  for (const int world : {2, 3, 5}) {
    const int64_t step = world;
    std::vector<std::unique_ptr<BackgroundSaver>> savers;
    for (int rank = 0; rank < world; ++rank)
      savers.push_back(std::make_unique<BackgroundSaver>(directory()));
    const std::string name = savers[0]->make_directory(step);
    for (int rank = world - 1; rank >= 0; --rank)
      savers[static_cast<std::size_t>(rank)]->save_share(step, make(7), {rank, world, name, {}});
    for (const auto& saver : savers) saver->flush();
    const auto found = directory().find_newest();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, step);
    write_state(temporary_ / "alone.pt", make(7));
    EXPECT_TRUE(read_file(found->path / "state.pt") == read_file(temporary_ / "alone.pt"));
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(found->path))
      files.push_back(entry.path().filename().string());
    std::sort(files.begin(), files.end());
    EXPECT_EQ(files, (std::vector<std::string>{"manifest.json", "state.pt"}));
  }
  EXPECT_EQ(names().size(), 2U);  // no directory is left over
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(SaveShareTest, ARankOnlyHoldsItsShare) {
  BackgroundSaver saver(directory());
  const std::string name = saver.make_directory(1);
  State state = make(7);
  // What is not in the share of rank 3 of 5 is not looked at: it may have no memory.
  State model = make_state();
  for (const auto& entry : state.at("model").toGenericDict()) {
    const bool elsewhere = entry.key().toStringRef() != "view";
    const at::Tensor tensor = entry.value().toTensor();
    model.insert(entry.key(), elsewhere
                                  ? at::empty(tensor.sizes(), tensor.options().device(at::kMeta))
                                  : tensor);
  }
  state.insert_or_assign("model", model);
  EXPECT_NO_THROW(saver.save_share(1, state, {3, 5, name, {}}));
  saver.flush();
  EXPECT_TRUE(fs::exists(temporary_ / "checkpoints" / name / "share-3.json"));
}

TEST_F(SaveShareTest, ARankThatHasGoneCostsThisCheckpointOnly) {
  std::atomic<bool> lost = false;
  BackgroundSaver first(directory());
  first.save(1, make(1));
  first.flush();
  first.save_share(2, make(2), {0, 2, first.make_directory(2), [&] { return lost.load(); }});
  lost = true;
  // Gives way to the next one, in which nobody else takes part.
  first.save(3, make(3));
  first.flush();
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(
      warnings_[0].find("the checkpoint of step 2 is not saved, and the older ones are as they "
                        "were: rank 1 did not write its share"),
      std::string::npos)
      << warnings_[0];
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000000001", "step-000000000003"}));
  EXPECT_EQ(value_in(*directory().find_newest()), 3);
}

TEST_F(SaveShareTest, AFailureOfARankIsRank0sErrorToo) {
  BackgroundSaver first(directory());
  BackgroundSaver second(directory());
  const std::string name = first.make_directory(1);
  // Rank 1 finds no file there that it can write.
  fs::create_directories(temporary_ / "checkpoints" / name / "state.pt");
  second.save_share(1, make(1), {1, 2, name, {}});
  EXPECT_THROW(second.flush(), Error);
  fs::remove(temporary_ / "checkpoints" / name / "state.pt");
  first.save_share(1, make(1), {0, 2, name, {}});
  try {
    first.flush();
    FAIL() << "saved without the share of rank 1";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 could not write its share: cannot create"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(names().empty());
  // Behind that the directory is gone: a late rank is no error, since rank 0 has said it.
  second.save_share(1, make(1), {1, 2, name, {}});
  second.flush();
}

// Two processes save one checkpoint after the other, and rank 0 says which are there. One of them
// is killed at a random moment, then the other: what was said must be there, and whole.
TEST_F(SaveShareTest, WhenARankIsKilledTheNewestGoodCheckpointLoads) {
  std::mt19937_64 random(3);
  int64_t last = 0;
  int in_mid_save = 0;
  for (int i = 0; i < 20; ++i) {
    int says[2];
    int named[2];
    ASSERT_EQ(::pipe(says), 0);
    ASSERT_EQ(::pipe(named), 0);
    pid_t pids[2];
    for (int rank = 0; rank < 2; ++rank) {
      pids[rank] = ::fork();
      ASSERT_GE(pids[rank], 0);
      if (pids[rank] != 0) continue;
      ::signal(SIGPIPE, SIG_DFL);
      ::close(rank == 0 ? named[0] : named[1]);
      BackgroundSaver saver(directory(1), [&](const Checkpoint& checkpoint, double) {
        if (::write(says[1], &checkpoint.step, sizeof checkpoint.step) < 0) ::_exit(1);
      });
      for (int64_t step = last + 1;; ++step) {
        char name[256] = "";
        if (rank == 0) {
          saver.make_directory(step).copy(name, sizeof name - 1);
          if (::write(named[1], name, sizeof name) < 0) ::_exit(1);
        } else if (::read(named[0], name, sizeof name) <= 0) {
          ::_exit(0);
        }
        saver.save_share(step, make(static_cast<double>(step)), {rank, 2, name, {}});
      }
    }
    for (const int fd : {says[1], named[0], named[1]}) ::close(fd);
    int64_t step = 0;
    const auto next = [&] {
      const bool more = ::read(says[0], &step, sizeof step) == sizeof step;
      if (more) last = step;
      return more;
    };
    ASSERT_TRUE(next());
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, 30'000)(random)));
    const std::size_t victim = random() % 2;
    ASSERT_EQ(::kill(pids[victim], SIGKILL), 0);
    ASSERT_EQ(::kill(pids[1 - victim], SIGKILL), 0);
    for (const pid_t pid : pids) ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
    while (next()) {
    }
    ::close(says[0]);
    for (const std::string& name : names()) in_mid_save += name[0] == '.' ? 1 : 0;
    const auto found = directory(1).find_newest();
    ASSERT_TRUE(found) << "kill " << i;
    ASSERT_GE(found->step, last);
    ASSERT_EQ(value_in(*found), found->step);
    ASSERT_TRUE(warnings_.empty()) << warnings_[0];
  }
  EXPECT_GT(in_mid_save, 5) << "the kills came when nothing was being written";
}

TEST(RandomState, GoesOnWhereItWas) {
  const at::Device host(at::kCPU);
  seed_random(7, 100, 3, host);
  const RandomState before = random_state(host);
  EXPECT_FALSE(before.device.defined());
  const at::Tensor drawn = at::rand({5});
  set_random_state(before, host);
  EXPECT_TRUE(at::rand({5}).equal(drawn));
  // Each rank and each step has its own, the same one each time.
  seed_random(7, 100, 3, host);
  EXPECT_TRUE(at::rand({5}).equal(drawn));
  seed_random(7, 100, 2, host);
  EXPECT_FALSE(at::rand({5}).equal(drawn));
  seed_random(7, 101, 3, host);
  EXPECT_FALSE(at::rand({5}).equal(drawn));
  EXPECT_THROW(set_random_state({at::zeros({3}, at::kByte), {}}, host), Error);
}

TEST(ParameterHash, OneBitOfOneParameterIsSeen) {
  const State state = make(3);
  const uint64_t before = hash_of(state);
  EXPECT_EQ(hash_of(make(3)), before);
  const at::Tensor weight = state.at("model").toGenericDict().at("weight").toTensor();
  static_cast<uint8_t*>(weight.data_ptr())[1'000'003] ^= 1;
  EXPECT_NE(hash_of(state), before);
}

}  // namespace
}  // namespace af::train
