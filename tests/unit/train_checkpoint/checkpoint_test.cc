// SPDX-License-Identifier: Apache-2.0
#include "af/train/checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

#include "af/train/background_saver.h"
#include "af/train/state_file.h"
#include "common/atomic_file.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"

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

TEST_F(CheckpointTest, WhatALiveWriterWritesIsLeftAlone) {
  const fs::path root = temporary_ / "checkpoints";
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  const std::string of_parent =
      ".writing-step-000000000001-" + std::string(host) + "-" + std::to_string(::getppid());
  put(root / of_parent / "state.pt", "half");
  put(root / ".writing-step-000000000001-another-host-1" / "state.pt", "half");
  put(root / ".writing-step-000000000002-long-ago-1" / "state.pt", "half");
  fs::last_write_time(root / ".writing-step-000000000002-long-ago-1",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  save(3);
  std::vector<std::string> expected = {of_parent, ".writing-step-000000000001-another-host-1",
                                       "step-000000000003"};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names(), expected);
}

// A child saves one checkpoint after the other, with as few kept as can be, and says each step that
// is saved. It is killed at a random moment, 200 times: what it has said must be there, and whole.
class Killed : public CheckpointTest {
 protected:
  // `child` gets the first step to save and what to call after each save.
  void kill_often(int times, int64_t keep, uint64_t seed,
                  const std::function<void(int64_t, const std::function<void(int64_t)>&)>& child,
                  const std::function<int64_t(const Checkpoint&)>& content) {
    std::mt19937_64 random(seed);
    int64_t last = 0;
    int in_mid_save = 0;
    for (int i = 0; i < times; ++i) {
      int ends[2];
      ASSERT_EQ(::pipe(ends), 0);
      const pid_t pid = ::fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        ::close(ends[0]);
        child(last + 1, [&](int64_t step) {
          if (::write(ends[1], &step, sizeof step) != sizeof step) ::_exit(1);
        });
        ::_exit(2);
      }
      ::close(ends[1]);
      // From the first save on: before it the child does nothing that could go wrong.
      const auto next = [&] { return ::read(ends[0], &last, sizeof last) == sizeof last; };
      ASSERT_TRUE(next());
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution<int>(0, 20'000)(random)));
      ASSERT_EQ(::kill(pid, SIGKILL), 0);
      int status = 0;
      ASSERT_EQ(::waitpid(pid, &status, 0), pid);
      ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
      while (next()) {
      }
      ::close(ends[0]);
      bool temporary = false;
      for (const std::string& name : names()) {
        temporary = temporary || name[0] == '.';
        // None is there in part, also not one that was being removed.
        if (name[0] != '.') {
          const fs::path path = temporary_ / "checkpoints" / name;
          ASSERT_EQ(fault_of_checkpoint({path, std::stol(name.substr(5))}), std::nullopt) << name;
        }
      }
      in_mid_save += temporary ? 1 : 0;
      const auto found = directory(static_cast<int>(keep)).find_newest();
      ASSERT_TRUE(found) << "kill " << i;
      ASSERT_GE(found->step, last);
      ASSERT_EQ(content(*found), found->step);
      ASSERT_TRUE(warnings_.empty()) << warnings_[0];
    }
    EXPECT_GT(in_mid_save, times / 4) << "the kills came when nothing was being written";
  }
};

TEST_F(Killed, TheNewestGoodCheckpointAlwaysLoads) {
  // Steps that are saved twice replace themselves.
  kill_often(
      100, 1, 1,
      [&](int64_t first, const auto& saved) {
        const CheckpointDirectory mine = directory(1);
        for (int64_t step = first;; ++step)
          for (int again = 0; again < 2; ++again) {
            mine.save(step, [&](const fs::path& where) {
              put(where / "state.pt", std::to_string(step));
              put(where / "shards/rank-1.pt", std::string(100'000, 'x'));
            });
            saved(step);
          }
      },
      [](const Checkpoint& found) { return std::stol(read_file(found.path / "state.pt")); });
}

TEST_F(Killed, AlsoWhenItIsSavedInTheBackground) {
  kill_often(
      100, 2, 2,
      [&](int64_t first, const auto& saved) {
        at::set_num_threads(1);
        BackgroundSaver saver(
            directory(2), [&](const Checkpoint& checkpoint, double) { saved(checkpoint.step); });
        State state = make_state();
        state.insert("weight", at::ones({100, 100}));
        for (int64_t step = first;; ++step) {
          state.insert_or_assign("step", step);
          saver.save(step, state);
        }
      },
      [](const Checkpoint& found) {
        return read_state(found.path / "state.pt").at("step").toInt();
      });
}

// A file system of 1 MiB of this process and its children alone. Empty if it cannot be had here;
// then a limit on the size of files stands in for it.
std::string mount_small(const fs::path& where) {
  fs::create_directories(where);
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "";
  ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  if (::mount("none", where.c_str(), "tmpfs", 0, "size=1m,mode=777") != 0) return "";
  return "No space left on device";
}

TEST_F(CheckpointTest, AFullDiskIsSaidInALineAndTheOldCheckpointsStay) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::string said;
    try {
      at::set_num_threads(1);
      std::string reason = mount_small(temporary_ / "checkpoints");
      if (reason.empty()) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{500'000, 500'000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        reason = "File too large";
      }
      const auto save_bytes = [&](int64_t step, int64_t bytes) {
        State state = make_state();
        state.insert("weight", at::ones({bytes}, at::kByte));
        directory().save(step,
                         [&](const fs::path& where) { write_state(where / "state.pt", state); });
      };
      save_bytes(1, 200'000);
      save_bytes(2, 200'000);
      for (const int64_t step : {3, 4}) try {  // and again: it does not fill up with leftovers
          save_bytes(step, 800'000);
          said += "a checkpoint that has no room was saved; ";
        } catch (const Error& error) {
          const std::string what = error.what();
          const std::string begin = "the checkpoint of step " + std::to_string(step) +
                                    " is not saved, and the older ones are as they were: ";
          if (what.rfind(begin, 0) != 0 || what.find(reason) == std::string::npos ||
              what.find('\n') != std::string::npos)
            said += what + "; ";
        }
      if (names() != std::vector<std::string>{"step-000000000001", "step-000000000002"})
        said += "other files than before; ";
      if (directory().find_newest()->step != 2) said += "step 2 is lost; ";
      save_bytes(5, 200'000);
      if (directory().find_newest()->step != 5) said += "nothing is saved any more; ";
      if (!warnings_.empty()) said += warnings_[0];
    } catch (const std::exception& error) {
      said += error.what();
    }
    said += "end";
    ::_exit(::write(ends[1], said.data(), said.size()) > 0 ? 0 : 1);
  }
  ::close(ends[1]);
  char said[4096] = "";
  EXPECT_GT(::read(ends[0], said, sizeof said - 1), 0);
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_STREQ(said, "end");
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
