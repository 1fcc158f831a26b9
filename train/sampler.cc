// SPDX-License-Identifier: Apache-2.0
#include "af/train/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

// splitmix64 (Vigna, public domain). Neither std::shuffle nor the std distributions promise the
// same stream in two standard libraries, and a checkpoint must mean the same order everywhere.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound): values of the incomplete last round are drawn again.
  uint64_t below(uint64_t bound) {
    const uint64_t reject_under = (0 - bound) % bound;
    for (;;) {
      const uint64_t value = next();
      if (value >= reject_under) return value % bound;
    }
  }

 private:
  uint64_t state_;
};

void check_member(int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world)
    throw Error::format("sampler: rank {} is not in a world of {}", rank, world);
}

}  // namespace

Sampler::Sampler(int64_t rows, int64_t global_batch, uint64_t seed)
    : rows_(rows), global_batch_(global_batch), seed_(seed) {
  if (rows < 0) throw Error::format("sampler: {} rows", rows);
  if (global_batch < 1)
    throw Error::format("sampler: a batch of {} rows: at least 1 is needed", global_batch);
  set_epoch(0);
}

void Sampler::set_epoch(int64_t epoch) {
  if (epoch == epoch_) return;
  order_.resize(static_cast<size_t>(rows_));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  // Mixed twice: (seed 1, epoch 2) and (seed 2, epoch 1) must not be the same stream.
  SplitMix64 random(SplitMix64(seed_).next() + static_cast<uint64_t>(epoch));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  epoch_ = epoch;
}

std::vector<int64_t> Sampler::batch(int64_t step, int rank, int world) const {
  check_member(rank, world);
  if (step < 0 || step >= steps())
    throw Error::format("sampler: step {} is not in an epoch of {} steps", step, steps());
  const int64_t first = step * global_batch_;
  const int64_t last = std::min(rows_, first + global_batch_);
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>((last - first) / world + 1));
  for (int64_t place = first + rank; place < last; place += world)
    mine.push_back(order_[static_cast<size_t>(place)]);
  return mine;
}

Share contiguous_share(int64_t rows, int rank, int world) {
  check_member(rank, world);
  const int64_t each = rows / world;
  const int64_t longer = rows % world;  // so many ranks, the first ones, have one row more
  const int64_t first = rank * each + std::min<int64_t>(rank, longer);
  return {first, first + each + (rank < longer ? 1 : 0)};
}

}  // namespace af::train
