// SPDX-License-Identifier: Apache-2.0
#include "launcher/checkpoint_watch.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <asio/io_context.hpp>
#include <fstream>

namespace af {
namespace {

namespace fs = std::filesystem;

class CheckpointWatching : public testing::Test {
 protected:
  CheckpointWatching() {
    char name[] = "/tmp/af-checkpoint-watch-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~CheckpointWatching() override { fs::remove_all(directory_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((directory_ / name).parent_path());
    std::ofstream(directory_ / name) << text;
  }
  fs::path directory_;
};

TEST_F(CheckpointWatching, FindsTheNewestTwoLevelsDeep) {
  EXPECT_EQ(newest_file(directory_).path, "");
  EXPECT_EQ(newest_file(directory_ / "missing").path, "");
  write("old.pt", "1");
  write("step-2/state.pt", "22");
  EXPECT_EQ(newest_file(directory_).path, directory_ / "step-2/state.pt");
  EXPECT_EQ(newest_file(directory_).size, 2U);
}

TEST_F(CheckpointWatching, LooksAsDeepAsItIsTold) {
  write("a/b/c/state.pt", "1");
  EXPECT_EQ(newest_file(directory_).path, "");
  EXPECT_EQ(newest_file(directory_, 4).path, directory_ / "a/b/c/state.pt");
}

TEST(CheckpointDirectory, IsThePersonsOrTheRuns) {
  const RunDirectory run = {.path = "/runs/7"};
  EXPECT_EQ(checkpoint_directory({}, run), "/runs/7/checkpoints");
  EXPECT_EQ(checkpoint_directory({{"AF_CHECKPOINT_DIR", "/work/mine"}}, run), "/work/mine");
}

TEST_F(CheckpointWatching, UnfinishedOnesDoNotCount) {
  write("state.pt", "1");
  const NewestFile before = newest_file(directory_);
  for (const char* name : {"state.pt.tmp", ".writing-step-1/state.pt", "x.part", ".hidden"})
    write(name, "2");
  EXPECT_EQ(newest_file(directory_), before);
}

TEST_F(CheckpointWatching, OneIsSeenOnceAndWhenItIsAtRest) {
  const NewestFile a{"a", 1, 10}, growing{"b", 2, 10}, grown{"b", 3, 20};
  CheckpointSeen seen(a);
  EXPECT_FALSE(seen.look(a)) << "it was there at the start";
  EXPECT_FALSE(seen.look(growing));
  EXPECT_FALSE(seen.look(grown)) << "it still grows";
  EXPECT_TRUE(seen.look(grown));
  EXPECT_FALSE(seen.look(grown));
  EXPECT_FALSE(seen.look({}));
  EXPECT_FALSE(seen.look({})) << "that all were deleted is no checkpoint";
}

TEST_F(CheckpointWatching, AProgramThatWritesAllTheTimeIsSeenToo) {
  CheckpointSeen seen(NewestFile{});
  int times = 0;
  for (int i = 1; i <= 9; ++i) times += seen.look({"state.pt", i, 10});
  EXPECT_EQ(times, 3);
}

TEST_F(CheckpointWatching, CallsBack) {
  asio::io_context io;
  OutputWriter writer;
  std::string found;
  CheckpointWatch watch(io, writer, directory_, [&](const std::string& path) {
    found = path;
    io.stop();
  });
  write("state.pt", "1");
  io.run_for(std::chrono::seconds(30));
  EXPECT_EQ(found, directory_ / "state.pt");
}

}  // namespace
}  // namespace af
