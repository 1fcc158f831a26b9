// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints beside the training: save() copies the state and returns, a thread writes it.
//
//   af::train::BackgroundSaver saver(af::train::CheckpointDirectory("checkpoints"));
//   …
//   saver.save(step, state);    // pauses for the copy
//   …
//   saver.flush();              // at the end: all is on the disk
//
// The copies live in host memory that is kept from one save to the next, as much as the state has
// (pinned for tensors of a GPU). The first save is the slowest: it makes them.
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

#include "af/export.h"
#include "af/train/checkpoint.h"
#include "af/train/state_file.h"

namespace af::train {

// Use from one thread, on one rank of a world.
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

  // Waits for the save in flight. Throws its af::Error.
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
