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
// the next `global_batch` places of it, and rank r of w takes the places r, r+w, r+2w, … of those:
// a step has the same rows at every world size. So a checkpoint needs (seed, epoch, position), and
// any world goes on from there. Rows of ranks that vanish in mid-step are put at the end of the
// epoch. data_order.h says what the calls do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "af/export.h"
#include "af/train/data_order.h"

namespace af::train {

class AF_PUBLIC Dealer : public DataOrder {
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
  Dealer(int64_t rows, int64_t global_batch, uint64_t seed, LastBatch last = LastBatch::keep);

  std::unique_ptr<DataOrder> clone() const override { return std::make_unique<Dealer>(*this); }

  int64_t rows() const override { return state_.rows; }
  int64_t global_batch() const override { return global_batch_; }
  uint64_t seed() const override { return state_.seed; }
  int64_t steps_of_epoch() const override;

  void set_world(int rank, int world_size) override;
  std::optional<std::vector<int64_t>> next(int64_t epoch) override;
  bool in_step() const override { return state_.dealt_to > 0; }
  bool at_end() const override { return !in_step() && !step_left(); }
  void complete() override;
  int64_t epoch() const override { return state_.epoch; }
  void finish_epoch(int64_t epoch) override;
  void change_world(int rank, const std::vector<int>& was, bool begun) override;

  OrderState save(Scope scope) const override;
  void restore(const OrderState& state) override;

  // The same as save() and restore() with names of C++.
  const State& state() const { return state_; }
  State state_to_save() const;
  void load(const State& state);

 private:
  int64_t total() const;
  bool step_left() const;
  int64_t end_of_step() const;
  int64_t row_at(int64_t place) const;
  void begin_epoch(int64_t epoch);
  void make_order();

  int64_t global_batch_;
  LastBatch last_;
  State state_;
  int rank_ = 0;
  int world_size_ = 1;
  std::shared_ptr<std::vector<int64_t>> order_;  // a clone has the same
};

// A contiguous share of `rows` for `rank`: [first, last). Shares differ by at most one row and
// cover all rows once; for what is read in order, such as the test set.
struct Share {
  int64_t first;
  int64_t last;
};
AF_PUBLIC Share contiguous_share(int64_t rows, int rank, int world);

}  // namespace af::train
