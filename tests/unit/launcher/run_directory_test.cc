// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "common/atomic_file.h"
#include "common/error.h"
#include "launcher/journal.h"

namespace af {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() {
    std::string name = (fs::temp_directory_path() / "af-run-XXXXXX").string();
    base_ = ::mkdtemp(name.data());
  }
  ~RunDirectoryTest() override { fs::remove_all(base_); }
  fs::path base_;
};

TEST_F(RunDirectoryTest, EachLaunchOfAnAttemptHasItsOwnAndARequeueFindsThemAgain) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(create_run_directory(base_, "", "77", attempt).path, base_ / "af-runs/77");
    EXPECT_EQ(create_run_directory(base_, "", "77", attempt).path, base_ / "af-runs/77.1");
  }
  const RunDirectory again = create_run_directory(base_, "", "77", 2);
  EXPECT_EQ(again.rank_log(2, 5), base_ / "af-runs/77/logs/attempt-2/gen-0/rank-5.log");
  EXPECT_TRUE(fs::is_directory(again.logs(2)));
  EXPECT_TRUE(fs::is_directory(again.checkpoints()));
}

TEST_F(RunDirectoryTest, ADirectoryThatWasAskedForIsUsedAgainWithoutMixingLogs) {
  EXPECT_EQ(create_run_directory(base_, "mine", "1", 0).generation, 0);
  EXPECT_EQ(create_run_directory(base_, "mine", "1", 0).generation, 1);
  EXPECT_EQ(create_run_directory(base_, "mine", "1", 1).generation, 0);
  EXPECT_EQ(create_run_directory("/elsewhere", (base_ / "absolute").string(), "1", 0).path,
            base_ / "absolute");
}

TEST_F(RunDirectoryTest, TheErrorNamesThePath) {
  std::ofstream(base_ / "file") << "x";
  try {
    create_run_directory(base_, "file/below", "1", 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find((base_ / "file/below").string()), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--run-dir"), std::string::npos);
  }
}

TEST_F(RunDirectoryTest, TheSecretIsMadeOnceAndPrivate) {
  const RunDirectory directory = create_run_directory(base_, "", "1", 0);
  const std::string secret = create_secret(directory);
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_EQ(create_secret(directory), secret);
  struct stat status {};
  ASSERT_EQ(::stat(directory.secret().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ::chmod(directory.secret().c_str(), 0644);
  EXPECT_THROW(read_secret(directory), Error);
}

TEST_F(RunDirectoryTest, TheJournalIsOneObjectALine) {
  const RunDirectory directory = create_run_directory(base_, "", "1", 0);
  {
    OutputWriter writer;
    Journal journal(writer, directory, {{"run", "1"}, {"attempt", 0}});
    journal.event("run_start", {{"command", "line\nbreak \xff"}});
    journal.event("run_end", {{"code", 7}});
    journal.state({{"state", "running"}, {"size", 4}});
    journal.state({{"state", "failed"}});
  }
  std::ifstream file(directory.events());
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "run_start");
  EXPECT_EQ(lines[1]["run"], "1");
  EXPECT_EQ(lines[1]["code"], 7);
  EXPECT_GT(lines[0]["t"].get<double>(), 1.6e9);
  const auto state = nlohmann::json::parse(read_file(directory.state()));
  EXPECT_EQ(state["state"], "failed");
  EXPECT_EQ(state["size"], 4);
}

}  // namespace
}  // namespace af
