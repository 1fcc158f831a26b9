// SPDX-License-Identifier: Apache-2.0
// Deals the rows of a data set to the ranks of a world that may change, for data that is in memory:
// every row once in an epoch, and the same number of rows in a step at every world size.
//
//   af::train::Dealer dealer(rows, 64, seed);
//   dealer.set_world(rank, world_size);
//   for (int64_t epoch = dealer.epoch(); epoch < epochs; ++epoch)
//     while (const auto rows = dealer.next(epoch)) {   // of this rank; possibly none
//       ... all ranks take the step ...
//       dealer.complete();
//     }
//
// DataParallel (data_parallel.h) does all calls but the first for a program.
//
// The order of an epoch is a permutation of the rows made from (seed, epoch) alone. A step takes
// the next `global_batch` places of it, and rank r of w takes the places r, r+w, r+2w, … of those.
// So a checkpoint needs (seed, epoch, position), and any world goes on from there.
//
// A world that is lost in mid-step: the step is completed by the ranks that are left, with the rows
// they have been dealt. Those of the vanished ranks are put at the end of the epoch, which thereby
// gets longer. The same on all ranks, with no message between them. (docs/session-protocol.md)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "af/export.h"

namespace af::train {

// Use from one thread. Ranks that make the same calls (but for `rank`) agree on everything.
class AF_PUBLIC Dealer {
 public:
  // Everything but the world. Within a step, `dealt_to` is the size of the world that dealt it, and
  // `dealt_as` the number in it of each rank of the world of now (-1: it has no rows of this step).
  struct State {
    int64_t rows = 0;
    uint64_t seed = 0;
    int64_t epoch = 0;
    int64_t position = 0;            // places of the epoch that are done
    std::vector<int64_t> left_over;  // rows put at the end of the epoch
    int dealt_to = 0;                // 0: no step is begun
    std::vector<int> dealt_as;
  };

  // The same arguments on all ranks. Throws af::Error when rows < 0 or global_batch < 1.
  Dealer(int64_t rows, int64_t global_batch, uint64_t seed);

  int64_t rows() const { return state_.rows; }
  int64_t global_batch() const { return global_batch_; }
  // Of an epoch in which nothing is lost.
  int64_t steps_of_epoch() const { return (state_.rows + global_batch_ - 1) / global_batch_; }

  // The world that deals from the next step on: a world of one at first.
  // Throws af::Error for a rank that is not in it, and within a step: see change_world().
  void set_world(int rank, int world_size);

  // The rows of this rank in the next step, in a fixed order; nothing when `epoch` is over. Asked
  // again before complete(), it gives the same rows. Begins `epoch` if it is a later one; an epoch
  // that has been left behind (on a state that came from another rank) is over.
  std::optional<std::vector<int64_t>> next(int64_t epoch);

  // A step is dealt and not completed.
  bool in_step() const { return state_.dealt_to > 0; }
  // All rows of the epoch are dealt and completed.
  bool at_end() const { return !in_step() && state_.position == total(); }
  // All rows of the step that ranks of this world have are learned.
  void complete();

  // The epoch in progress; where a loop over epochs begins.
  int64_t epoch() const { return state_.epoch; }
  // What is saved from now on goes on with the epoch behind this one. Nothing if that is so
  // already.
  void finish_epoch(int64_t epoch);

  // Another world, in the middle of anything. By rank of the new world, `was` has the rank in the
  // world before (-1: in none). `begun`: some rank that has completed as many steps as this one has
  // been dealt the next; then that step, dealt by the old world, is to be completed by the new one.
  void change_world(int rank, const std::vector<int>& was, bool begun);

  // A copy, and back. load() keeps the world; it takes the seed of the state.
  // Throws af::Error if the state is of another number of rows, or makes no sense.
  const State& state() const { return state_; }
  // What a checkpoint holds: a step that is begun is dealt anew by whoever goes on from it.
  State state_to_save() const;
  void load(const State& state);

 private:
  int64_t total() const;
  int64_t end_of_step() const;
  int64_t row_at(int64_t place) const;
  void begin_epoch(int64_t epoch);
  void make_order();

  int64_t global_batch_;
  State state_;
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<int64_t> order_;
};

// A contiguous share of `rows` for `rank`: [first, last). Shares differ by at most one row and
// cover all rows once; for what is read in order, such as the test set.
struct Share {
  int64_t first;
  int64_t last;
};
AF_PUBLIC Share contiguous_share(int64_t rows, int rank, int world);

}  // namespace af::train
