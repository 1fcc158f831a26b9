// SPDX-License-Identifier: Apache-2.0
#include "af/train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include "common/atomic_file.h"
#include "common/error.h"
#include "tests/unit/train/temporary_directory.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointDirectory directory(int keep = 2) {
    return CheckpointDirectory(temporary_ / "checkpoints", keep,
                               [this](const std::string& line) { warnings_.push_back(line); });
  }
  static void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  Checkpoint save(int64_t step, int keep = 2) {
    return directory(keep).save(step, [&](const fs::path& where) {
      put(where / "state.pt", "state of step " + std::to_string(step));
    });
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(temporary_ / "checkpoints"))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  TemporaryDirectory temporary_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointTest, NoDirectoryMeansNoCheckpoint) {
  EXPECT_FALSE(directory().find_newest());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CheckpointTest, TheNewestIsFound) {
  save(9);
  save(10);  // text order would put 9 behind 10
  const auto found = directory().find_newest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 10);
  EXPECT_EQ(read_file(found->path / "state.pt"), "state of step 10");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CheckpointTest, TheManifestIsAsDocumented) {
  const Checkpoint saved = directory().save(420, [](const fs::path& where) {
    put(where / "state.pt", "123456789");
    put(where / "shards/rank-1.pt", "");
  });
  EXPECT_EQ(saved.path.filename(), "step-000000000420");
  // 0xcbf43926 is the check value of CRC-32 for "123456789".
  EXPECT_EQ(read_file(saved.path / "manifest.json"), R"({
  "files": {
    "shards/rank-1.pt": {
      "bytes": 0,
      "crc32": "00000000"
    },
    "state.pt": {
      "bytes": 9,
      "crc32": "cbf43926"
    }
  },
  "format": 1,
  "step": 420
}
)");
}

TEST_F(CheckpointTest, OthersMayReadIt) {
  const Checkpoint saved = save(1);
  struct stat status {};
  ASSERT_EQ(::stat(saved.path.c_str(), &status), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(status.st_mode & 0777, 0777 & ~mask);
}

TEST_F(CheckpointTest, OnlyTheLastAreKept) {
  for (int64_t step = 1; step <= 5; ++step) save(step, 3);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000000003", "step-000000000004",
                                               "step-000000000005"}));
}

// Each way of damage, with what the warning must say.
struct Damage {
  const char* name;
  void (*spoil)(const fs::path& checkpoint);
  const char* warning;
};

class Damaged : public CheckpointTest, public testing::WithParamInterface<Damage> {};

TEST_P(Damaged, IsSkippedWithAWarningAndTheOneBeforeIsTaken) {
  save(1);
  const Checkpoint bad = save(2);
  GetParam().spoil(bad.path);
  const auto found = directory().find_newest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 1);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find(GetParam().warning), std::string::npos) << warnings_[0];
  EXPECT_NE(warnings_[0].find(bad.path.string()), std::string::npos) << warnings_[0];

  // The next save goes on, and never counts the bad one among those to keep.
  save(3, 2);
  save(4, 2);
  EXPECT_EQ(directory().find_newest()->step, 4);
  EXPECT_FALSE(fault_of_checkpoint({temporary_ / "checkpoints/step-000000000003", 3}));
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, Damaged,
    testing::Values(
        Damage{"truncated", [](const fs::path& p) { fs::resize_file(p / "state.pt", 5); },
               "state.pt has 5 bytes instead of 15"},
        Damage{"empty", [](const fs::path& p) { fs::resize_file(p / "state.pt", 0); },
               "state.pt has 0 bytes"},
        Damage{"gone", [](const fs::path& p) { fs::remove(p / "state.pt"); },
               "state.pt: No such file"},
        Damage{"changed",
               [](const fs::path& p) { std::ofstream(p / "state.pt") << "state of step 3"; },
               "state.pt has the CRC-32"},
        Damage{"no_manifest", [](const fs::path& p) { fs::remove(p / "manifest.json"); },
               "cannot read"},
        Damage{"torn_manifest", [](const fs::path& p) { fs::resize_file(p / "manifest.json", 20); },
               "is not a manifest"},
        Damage{"of_another_step",
               [](const fs::path& p) {
                 fs::copy_file(p.parent_path() / "step-000000000001/manifest.json",
                               p / "manifest.json", fs::copy_options::overwrite_existing);
               },
               "its manifest is of step 1"},
        Damage{"newer_format",
               [](const fs::path& p) {
                 std::ofstream(p / "manifest.json") << R"({"format":2,"step":2,"files":{}})";
               },
               "a newer af"},
        Damage{"foreign",
               [](const fs::path& p) {
                 std::ofstream(p / "manifest.json") << R"({"name":"my app","icons":[]})";
               },
               "is not a manifest"}),
    [](const auto& one) { return std::string(one.param.name); });

TEST_F(CheckpointTest, ForeignNamesAreLeftAlone) {
  const fs::path root = temporary_ / "checkpoints";
  for (const char* name : {"step-2/a", "step-00000000000x/a", "step-9999999999999999999999/a",
                           "step-000000000007-old/a", "notes/a"})
    put(root / name, "mine");
  put(root / "step-000000000006/a", "no manifest: not af's either");
  save(5);
  save(8, 1);
  EXPECT_EQ(directory().find_newest()->step, 8);
  EXPECT_EQ(names(), (std::vector<std::string>{
                         "notes", "step-000000000006", "step-000000000007-old", "step-000000000008",
                         "step-00000000000x", "step-2", "step-9999999999999999999999"}));
}

TEST_F(CheckpointTest, ASecondSaveOfAStepReplacesTheFirst) {
  save(3);
  directory().save(3, [](const fs::path& where) { put(where / "other.pt", "x"); });
  EXPECT_EQ(names(), std::vector<std::string>{"step-000000000003"});
  const auto found = directory().find_newest();
  ASSERT_TRUE(found);
  EXPECT_TRUE(fs::exists(found->path / "other.pt"));
  EXPECT_FALSE(fs::exists(found->path / "state.pt"));
}

TEST_F(CheckpointTest, AFailedWriteLeavesNothingAndSparesTheOthers) {
  save(1);
  EXPECT_THROW(directory().save(2,
                                [](const fs::path& where) {
                                  put(where / "state.pt", "half");
                                  throw std::runtime_error("disk full");
                                }),
               std::runtime_error);
  EXPECT_EQ(names(), std::vector<std::string>{"step-000000000001"});
  EXPECT_EQ(directory().find_newest()->step, 1);
}

TEST_F(CheckpointTest, AKilledWriterLeavesNothingThatIsLoadedOrStays) {
  save(1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    directory().save(2, [](const fs::path& where) {
      put(where / "state.pt", "half");
      ::_exit(9);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 9);
  ASSERT_EQ(names().size(), 2U);
  EXPECT_EQ(directory().find_newest()->step, 1);
  save(3);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000000001", "step-000000000003"}));
}

TEST_F(CheckpointTest, ALinkInACheckpointIsRefused) {
  EXPECT_THROW(
      directory().save(
          1, [](const fs::path& where) { fs::create_symlink("/etc/passwd", where / "state.pt"); }),
      Error);
}

TEST_F(CheckpointTest, ErrorsNameThePath) {
  put(temporary_ / "file", "");
  const CheckpointDirectory below_a_file(temporary_ / "file/checkpoints", 2);
  try {
    below_a_file.save(1, [](const fs::path&) {});
    FAIL() << "saved below a file";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("file/checkpoints"), std::string::npos);
  }
  EXPECT_THROW(directory(0), Error);
  EXPECT_THROW(save(-1), Error);
}

}  // namespace
}  // namespace af::train
