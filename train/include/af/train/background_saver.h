// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints beside the training: save() copies the state and returns, a thread writes it.
//
//   af::train::BackgroundSaver saver(af::train::CheckpointDirectory("checkpoints"));
//   …
//   saver.save(step, state);    // pauses for the copy
//   …
//   saver.flush();              // at the end: all is on the disk
//
// The copies live in host memory that is kept from one save to the next (pinned for tensors of a
// GPU). prepare() makes it, else the first save, which is then the slowest.
//
// Ranks with the same state may save it together: save_share() on each copies and writes a part of
// one state.pt, and rank 0 completes the checkpoint when all parts are on the disk. DataParallel
// does that for a program.
//
// One save at a time. A save that comes while the one before is still being written waits for it,
// so that none is left out: where the disk is slower than the training, the training is as slow as
// the disk. With Busy::skip it is left out instead, and the pause is never more than the copy.
//
// A save that failed is reported by the next save() or flush(), which throws what it threw; the one
// after that tries again. What nobody asked for is printed when the object goes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "af/export.h"
#include "af/train/checkpoint.h"
#include "af/train/state_file.h"

namespace af::train {

// One rank's part in a save by all.
struct SaveShare {
  int rank = 0;
  int world_size = 1;
  // Of the directory, below that of the checkpoints, which rank 0 has made with make_directory().
  std::string name;
  // Whether ranks may have gone since. Called in the saver's thread. Rank 0 then waits for what is
  // missing a little longer only, or not at all when the next save comes, and warns. A directory
  // that is no good checkpoint is left to the next save to remove.
  std::function<bool()> lost;
};

// Use from one thread.
class AF_PUBLIC BackgroundSaver {
 public:
  // Called in the saver's thread after a checkpoint is complete on disk; `seconds` from save() on.
  using Saved = std::function<void(const Checkpoint& checkpoint, double seconds)>;

  explicit BackgroundSaver(CheckpointDirectory directory, Saved saved = {});
  // Waits for the save in flight.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  const CheckpointDirectory& directory() const;

  enum class Busy { wait, skip };
  // False if it was left out. `state` may change as soon as this returns; it becomes state.pt.
  // Throws af::Error of the save before, or for a value that state.pt cannot hold.
  bool save(int64_t step, const State& state, Busy busy = Busy::wait);

  // On every rank, with a state that has the same names, types and shapes, and the same values (of
  // each tensor only those in a rank's share are looked at). Throws as save() does; what goes wrong
  // on another rank is rank 0's error too.
  void save_share(int64_t step, const State& state, SaveShare share);
  // For rank 0 of save_share(): a new directory for a save, and its name; "" if it cannot be made
  // (save() then says why). Throws af::Error of the save before.
  std::string make_directory(int64_t step);

  // Makes the memory for such a state; takes as long as filling it with zeros. Nothing happens
  // while a save is in flight.
  void prepare(const State& state, int rank = 0, int world_size = 1);

  // Waits for the save in flight; on a rank other than 0, until its share is on the disk. Throws
  // its af::Error.
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
