// SPDX-License-Identifier: Apache-2.0
// Deals the rows of a data set to the ranks of a world, for data that is in memory.
//
// The order is a permutation of the rows made from (seed, epoch) alone; step s takes the next
// `global_batch` rows of it, and rank r of w takes the rows at the places r, r+w, r+2w, … of that
// batch. So what is trained in a step does not depend on the world's size: a checkpoint needs
// (seed, epoch, step) only, and any world goes on from there without a row repeated or lost.
#pragma once

#include <cstdint>
#include <vector>

#include "af/export.h"

namespace af::train {

// Thread-safety: set_epoch() must not run beside other calls; batch() alone may run anywhere.
class AF_PUBLIC Sampler {
 public:
  // The same arguments on all ranks. Throws af::Error when rows < 0 or global_batch < 1.
  Sampler(int64_t rows, int64_t global_batch, uint64_t seed);

  // Every rank makes the same number of steps, or the collectives of a step would not match.
  // The last step of an epoch has fewer rows where global_batch does not divide them.
  int64_t steps() const { return (rows_ + global_batch_ - 1) / global_batch_; }
  int64_t rows() const { return rows_; }
  int64_t global_batch() const { return global_batch_; }

  // The order of this epoch, made in O(rows). Epoch 0 is set at the start.
  void set_epoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }

  // The rows of `rank` in `step`: between floor and ceil of (rows of the step / world), so possibly
  // none, in the last step of an epoch. Throws af::Error for a step or rank that is out of range.
  std::vector<int64_t> batch(int64_t step, int rank, int world) const;

 private:
  int64_t rows_;
  int64_t global_batch_;
  uint64_t seed_;
  int64_t epoch_ = -1;
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
