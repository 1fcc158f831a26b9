// SPDX-License-Identifier: Apache-2.0
// Checkpoints on disk: directories that are there whole or not at all.
//
//   ROOT/step-000000000420/           one checkpoint; the number is the step it was taken after
//        state.pt, …                  what the caller wrote (state_file.h writes state.pt)
//        manifest.json                {"format": 1, "step": 420, "files":
//                                       {"state.pt": {"bytes": 1234, "crc32": "0badc0de"}, …}}
//   ROOT/.writing-…-HOST-PID/         one being written or removed, or left by a process that died:
//                                       removed by the next save
//
// A checkpoint is good if its manifest can be read, names the step of the directory, and every file
// in it has the size and the CRC-32 (zlib's: Python's zlib.crc32) that the manifest says. So a file
// cut short by a full disk, a bad copy, or somebody's directory of the same name is noticed, and
// the newest good one before it is taken.
//
// Save from one rank only; find_newest() may run on all of them. No torch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "af/export.h"

namespace af::train {

struct Checkpoint {
  std::filesystem::path path;
  int64_t step = 0;
};

// Called with one line for a person, such as why a checkpoint was skipped.
using Warn = std::function<void(const std::string& line)>;
AF_PUBLIC void warn_on_stderr(const std::string& line);

class AF_PUBLIC CheckpointDirectory {
 public:
  // `root` is made at the first save. The newest `keep` good checkpoints stay, the older ones are
  // removed after a save. Throws af::Error when keep < 1.
  explicit CheckpointDirectory(std::filesystem::path root, int keep = 2,
                               Warn warn = warn_on_stderr);

  const std::filesystem::path& root() const { return root_; }

  std::filesystem::path path_of(int64_t step) const;

  // Calls write(directory), which puts files there; they and the directory are on the disk (fsync)
  // and under their final name when this returns. A checkpoint of the same step is replaced (not on
  // file systems that cannot exchange two names, such as NFS: there a good one stays).
  // Throws af::Error with path and reason (no space, over quota, no permission, …), or what else
  // `write` throws; then nothing of it is left and the older checkpoints are as they were.
  Checkpoint save(int64_t step,
                  const std::function<void(const std::filesystem::path& directory)>& write) const;

  // The good checkpoint with the highest step; a warning for each bad one passed over. Nothing when
  // there is none or no such directory. Throws af::Error when `root` cannot be read.
  std::optional<Checkpoint> find_newest() const;

  // Removes those that are too old now that `newest` is there, as save() does; a warning if that
  // fails.
  void prune(int64_t newest) const;
  void warn(const std::string& line) const;

 private:
  void remove_old(int64_t newest) const;

  std::filesystem::path root_;
  int keep_;
  Warn warn_;
};

// Why the checkpoint is not good, in words; nothing when it is. Reads every byte of it.
AF_PUBLIC std::optional<std::string> fault_of_checkpoint(const Checkpoint& checkpoint);

}  // namespace af::train
