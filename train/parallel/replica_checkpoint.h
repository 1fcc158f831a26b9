// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a state that all ranks of a world have: the ranks compare what they have, each
// writes a share of one state.pt, and the random numbers of each rank are in it.
//
// Shares need a directory that all ranks see. Whether they do is looked at each time; where they do
// not, or a rank has nothing to save with, rank 0 saves alone.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "af/communicator.h"
#include "af/train/background_saver.h"
#include "af/train/state_file.h"
#include "af/world.h"
#include "train/checkpoint/save_agreement.h"

namespace af::train {

class ReplicaCheckpoint {
 public:
  // Collective, where no operation is in flight: `state` is what would be saved now, with "model"
  // in it; `saver` may be null. Throws af::Error, the same on all ranks, when parameters differ.
  void agree(Communicator& world, at::Device device, BackgroundSaver* saver, int64_t step,
             const State& state);

  // Not collective: begins to save `state`, which may differ from that above in values and in what
  // a step or an epoch changes in the same way on all ranks. `rank` and `generation`: of the world
  // as it is now. Where that is not the world of agree(), as when a rank was lost right behind it,
  // rank 0 saves alone.
  void save(BackgroundSaver* saver, int rank, uint64_t generation, int64_t step, State state,
            std::function<bool()> lost);

 private:
  struct Agreed {
    uint64_t generation = 0;
    int rank = 0;
    bool shares = false;
    std::vector<SaveOffer> offers;
  };
  std::optional<Agreed> agreed_;
};

// Sets this rank's generators to what a state has for it; a rank that it has nothing for is seeded
// by (seed, step, rank). Nothing happens if the state has no random numbers at all.
void restore_random(const State& state, uint64_t seed, int64_t step, int rank, at::Device device);

// Whether a world is gone, for a thread that may outlive its owner.
class WorldWatch {
 public:
  explicit WorldWatch(World* world) : world_(world) {}  // null: one of a fixed size
  bool lost(uint64_t generation) {
    const std::lock_guard lock(mutex_);
    if (over_ || world_ == nullptr) return over_;
    return world_->lost() || world_->view().generation != generation;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }

 private:
  std::mutex mutex_;
  World* world_;
  bool over_ = false;
};

}  // namespace af::train
