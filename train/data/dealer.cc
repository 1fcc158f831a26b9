// SPDX-License-Identifier: Apache-2.0
#include "af/train/dealer.h"

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
    throw Error::format("dealer: rank {} is not in a world of {}", rank, world);
}

}  // namespace

Dealer::Dealer(int64_t rows, int64_t global_batch, uint64_t seed) : global_batch_(global_batch) {
  if (rows < 0) throw Error::format("dealer: {} rows", rows);
  if (global_batch < 1)
    throw Error::format("dealer: a batch of {} rows: at least 1 is needed", global_batch);
  state_.rows = rows;
  state_.seed = seed;
  make_order();
}

void Dealer::make_order() {
  order_.resize(static_cast<size_t>(state_.rows));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  // Mixed twice: (seed 1, epoch 2) and (seed 2, epoch 1) must not be the same stream.
  SplitMix64 random(SplitMix64(state_.seed).next() + static_cast<uint64_t>(state_.epoch));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
}

int64_t Dealer::total() const {
  return state_.rows + static_cast<int64_t>(state_.left_over.size());
}

int64_t Dealer::end_of_step() const {
  return std::min(total(), state_.position + global_batch_);
}

int64_t Dealer::row_at(int64_t place) const {
  return place < state_.rows ? order_[static_cast<size_t>(place)]
                             : state_.left_over[static_cast<size_t>(place - state_.rows)];
}

void Dealer::begin_epoch(int64_t epoch) {
  state_.epoch = epoch;
  state_.position = 0;
  state_.left_over.clear();
  state_.dealt_to = 0;
  state_.dealt_as.clear();
  make_order();
}

void Dealer::finish_epoch(int64_t epoch) {
  if (state_.epoch <= epoch) begin_epoch(epoch + 1);
}

void Dealer::set_world(int rank, int world_size) {
  check_member(rank, world_size);
  if (in_step()) throw Error("dealer: set_world() within a step");
  rank_ = rank;
  world_size_ = world_size;
}

std::optional<std::vector<int64_t>> Dealer::next(int64_t epoch) {
  if (epoch < state_.epoch) return std::nullopt;
  if (epoch > state_.epoch) begin_epoch(epoch);
  if (!in_step()) {
    if (state_.position == total()) return std::nullopt;
    state_.dealt_to = world_size_;
    state_.dealt_as.resize(static_cast<size_t>(world_size_));
    std::iota(state_.dealt_as.begin(), state_.dealt_as.end(), 0);
  }
  std::vector<int64_t> mine;
  const int as = state_.dealt_as[static_cast<size_t>(rank_)];
  if (as < 0) return mine;
  mine.reserve(static_cast<size_t>((end_of_step() - state_.position) / state_.dealt_to + 1));
  for (int64_t place = state_.position + as; place < end_of_step(); place += state_.dealt_to)
    mine.push_back(row_at(place));
  return mine;
}

void Dealer::complete() {
  if (!in_step()) throw Error("dealer: complete() without a step");
  std::vector<bool> here(static_cast<size_t>(state_.dealt_to));
  for (const int as : state_.dealt_as)
    if (as >= 0) here[static_cast<size_t>(as)] = true;
  const int64_t end = end_of_step();
  for (int64_t place = state_.position; place < end; ++place)
    if (!here[static_cast<size_t>((place - state_.position) % state_.dealt_to)])
      state_.left_over.push_back(row_at(place));
  state_.position = end;
  state_.dealt_to = 0;
  state_.dealt_as.clear();
}

void Dealer::change_world(int rank, const std::vector<int>& was, bool begun) {
  check_member(rank, static_cast<int>(was.size()));
  // This rank has not come as far as the one that was dealt the step; it deals as that one did.
  if (begun && !in_step() && !next(state_.epoch)) next(state_.epoch + 1);
  if (in_step()) {
    std::vector<int> dealt_as;
    dealt_as.reserve(was.size());
    for (const int old : was)
      dealt_as.push_back(old >= 0 && old < static_cast<int>(state_.dealt_as.size())
                             ? state_.dealt_as[static_cast<size_t>(old)]
                             : -1);
    state_.dealt_as = std::move(dealt_as);
  }
  rank_ = rank;
  world_size_ = static_cast<int>(was.size());
}

Dealer::State Dealer::state_to_save() const {
  State saved = state_;
  saved.dealt_to = 0;
  saved.dealt_as.clear();
  return saved;
}

void Dealer::load(const State& state) {
  if (state.rows != state_.rows)
    throw Error::format("the saved position is in a data set of {} rows, and this one has {}",
                        state.rows, state_.rows);
  const int64_t all = state.rows + static_cast<int64_t>(state.left_over.size());
  bool good = state.epoch >= 0 && state.position >= 0 && state.position <= all;
  for (const int64_t row : state.left_over) good = good && row >= 0 && row < state.rows;
  for (const int as : state.dealt_as) good = good && as < state.dealt_to;
  if (state.dealt_to > 0) good = good && static_cast<int>(state.dealt_as.size()) == world_size_;
  if (!good)
    throw Error::format("the saved position {} of epoch {} in {} rows makes no sense",
                        state.position, state.epoch, state.rows);
  state_ = state;
  make_order();
}

Share contiguous_share(int64_t rows, int rank, int world) {
  check_member(rank, world);
  const int64_t each = rows / world;
  const int64_t longer = rows % world;  // so many ranks, the first ones, have one row more
  const int64_t first = rank * each + std::min<int64_t>(rank, longer);
  return {first, first + each + (rank < longer ? 1 : 0)};
}

}  // namespace af::train
