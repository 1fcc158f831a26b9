// SPDX-License-Identifier: Apache-2.0
#include "launcher/attempts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace af {
namespace {

namespace fs = std::filesystem;

TEST(Attempts, Counting) {
  const AttemptRecord none{}, progress{.progress = true}, closed{.closed = true};
  EXPECT_EQ(count_fruitless({}), 0);
  EXPECT_EQ(count_fruitless({none}), 1);
  EXPECT_EQ(count_fruitless({none, none, none}), 3);
  EXPECT_EQ(count_fruitless({none, none, progress}), 0);
  EXPECT_EQ(count_fruitless({none, progress, none}), 1);
  EXPECT_EQ(count_fruitless({none, none, none, closed, none}), 1);
}

class AttemptsTest : public testing::Test {
 protected:
  AttemptsTest() {
    std::string name = (fs::temp_directory_path() / "af-attempts-XXXXXX").string();
    directory_.path = ::mkdtemp(name.data());
    fs::create_directories(directory_.checkpoints());
  }
  ~AttemptsTest() override { fs::remove_all(directory_.path); }

  // An attempt that is killed, with all that watches it: it writes no end.
  int start(int attempt, const std::string& run = "17") {
    Attempts attempts(directory_, directory_.checkpoints(), run, attempt);
    attempts.begin();
    return attempts.fruitless_before();
  }
  void journal(const std::string& line) {
    std::ofstream(directory_.events(), std::ios::app) << line;
  }
  // Each newer than the one before, whatever the resolution of the file system's clock.
  void checkpoint(const std::string& name) {
    const fs::path path = directory_.checkpoints() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "x";
    fs::last_write_time(path, fs::file_time_type::clock::now() + std::chrono::seconds(++files_));
  }

  RunDirectory directory_;
  int files_ = 0;
};

TEST_F(AttemptsTest, KilledOnesCount) {
  EXPECT_EQ(start(0), 0);
  EXPECT_EQ(start(1), 1);
  EXPECT_EQ(start(2), 2);
  EXPECT_EQ(start(3), 3);
}

TEST_F(AttemptsTest, ANewCheckpointFileIsProgress) {
  start(0);
  checkpoint("old.pt");
  EXPECT_EQ(start(1), 0);
  EXPECT_EQ(start(2), 1);  // the old one is no progress of attempt 1
  checkpoint("deep/er/new.pt");
  EXPECT_EQ(start(3), 0);
}

TEST_F(AttemptsTest, AReportOrACheckpointInTheJournalIsProgress) {
  start(0);
  journal(R"({"t":1.5,"event":"report","run":"17","attempt":0,"generation":0,"rank":0})"
          "\n");
  EXPECT_EQ(start(1), 0);
  journal(R"({"t":1.5,"event":"notice","run":"17","attempt":1,"reason":"report"})"
          "\n");
  journal(R"({"t":1.5,"event":"report","run":"18","attempt":1})"
          "\n");
  EXPECT_EQ(start(2), 1);
  journal(R"({"t":1.5,"event":"checkpoint","run":"17","attempt":2,"seconds":3})"
          "\n");
  EXPECT_EQ(start(3), 0);
}

TEST_F(AttemptsTest, ALineThatWasCutIsNone) {
  start(0);
  journal(R"({"t":1.5,"event":"report","run":"17","attempt":0})");
  EXPECT_EQ(start(1), 1);
}

TEST_F(AttemptsTest, ThisAttempt) {
  start(0);
  start(1);
  Attempts now(directory_, directory_.checkpoints(), "17", 2);
  now.begin();
  EXPECT_EQ(now.fruitless_now(false), 3);
  journal(R"({"event":"checkpoint","run":"17","attempt":2,"seconds":4.5})"
          "\n");
  journal(R"({"event":"checkpoint","run":"17","attempt":2,"seconds":1})"
          "\n");
  EXPECT_EQ(now.fruitless_now(false), 0);
  EXPECT_EQ(now.journal().longest_checkpoint(), 4.5);
}

TEST_F(AttemptsTest, CheckpointsWhereThePersonHasThemCount) {
  const fs::path own = directory_.path / "elsewhere";
  Attempts(directory_, own, "17", 0).begin();
  fs::create_directories(own / "a/b/c");
  std::ofstream(own / "a/b/c/shard.pt") << "x";
  EXPECT_EQ(Attempts(directory_, own, "17", 1).fruitless_before(), 0);
}

TEST_F(AttemptsTest, WhatItWasToldCountsToo) {
  start(0);
  {
    Attempts now(directory_, directory_.checkpoints(), "17", 1);
    now.begin();
    EXPECT_EQ(now.fruitless_now(true), 0);
    now.end(false);
  }
  EXPECT_EQ(start(2), 0);
}

TEST_F(AttemptsTest, AfterAnEndItCountsAnew) {
  for (int attempt = 0; attempt < 3; ++attempt) start(attempt);
  Attempts refused(directory_, directory_.checkpoints(), "17", 3);
  EXPECT_EQ(refused.fruitless_before(), 3);
  refused.end(true);
  EXPECT_EQ(start(4), 0);
  EXPECT_EQ(start(5), 1);
}

TEST_F(AttemptsTest, AnotherRunInTheSameDirectoryStartsFromTheBeginning) {
  for (int attempt = 0; attempt < 3; ++attempt) start(attempt);
  EXPECT_EQ(start(3, "99"), 0);
}

TEST_F(AttemptsTest, AFileThatIsNoneIsNoObstacle) {
  std::ofstream(directory_.path / "attempts.json") << "{\"run\": 17, \"attempts\": [";
  EXPECT_EQ(start(5), 0);
  EXPECT_EQ(start(6), 1);
}

}  // namespace
}  // namespace af
