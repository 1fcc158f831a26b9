// SPDX-License-Identifier: Apache-2.0
#include "af/train/dealer.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "common/error.h"
#include "train/data/dealt_step.h"
#include "train/data/order_state.h"
#include "train/data/random_order.h"

namespace af::train {

Dealer::Dealer(int64_t rows, int64_t global_batch, uint64_t seed, LastBatch last)
    : global_batch_(global_batch), last_(last) {
  if (rows < 0) throw Error::format("dealer: {} rows", rows);
  if (global_batch < 1)
    throw Error::format("dealer: a batch of {} rows: at least 1 is needed", global_batch);
  state_.rows = rows;
  state_.seed = seed;
  make_order();
}

void Dealer::make_order() {
  // A copy of this dealer may have the same order, and goes on with it. The last one that had it
  // may have been another thread's.
  if (order_ && order_.use_count() == 1)
    std::atomic_thread_fence(std::memory_order_acquire);
  else
    order_ = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(state_.rows));
  std::iota(order_->begin(), order_->end(), int64_t{0});
  shuffle(*order_, stream_of(state_.seed, state_.epoch));
}

int64_t Dealer::steps_of_epoch() const {
  return last_ == LastBatch::drop ? state_.rows / global_batch_
                                  : (state_.rows + global_batch_ - 1) / global_batch_;
}

int64_t Dealer::total() const {
  return state_.rows + static_cast<int64_t>(state_.left_over.size());
}

bool Dealer::step_left() const {
  return total() - state_.position >= (last_ == LastBatch::drop ? global_batch_ : 1);
}

int64_t Dealer::end_of_step() const {
  return std::min(total(), state_.position + global_batch_);
}

int64_t Dealer::row_at(int64_t place) const {
  return place < state_.rows ? (*order_)[static_cast<size_t>(place)]
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
    if (!step_left()) return std::nullopt;
    state_.dealt_to = world_size_;
    state_.dealt_as = dealt_to_all(world_size_);
  }
  std::vector<int64_t> mine;
  const int as = state_.dealt_as[static_cast<size_t>(rank_)];
  if (as < 0) return mine;
  const int64_t end = end_of_step();
  mine.reserve(static_cast<size_t>((end - state_.position) / state_.dealt_to + 1));
  int64_t place = state_.position + as;
  for (; place < std::min(end, state_.rows); place += state_.dealt_to)
    mine.push_back((*order_)[static_cast<size_t>(place)]);
  for (; place < end; place += state_.dealt_to) mine.push_back(row_at(place));
  return mine;
}

void Dealer::complete() {
  if (!in_step()) throw Error("dealer: complete() without a step");
  const std::vector<int> now = ranks_now(state_.dealt_as, state_.dealt_to);
  const int64_t end = end_of_step();
  const bool lost = std::find(now.begin(), now.end(), -1) != now.end();
  for (int64_t place = state_.position; lost && place < end; ++place)
    if (now[static_cast<size_t>((place - state_.position) % state_.dealt_to)] < 0)
      state_.left_over.push_back(row_at(place));
  state_.position = end;
  state_.dealt_to = 0;
  state_.dealt_as.clear();
}

void Dealer::change_world(int rank, const std::vector<int>& was, bool begun) {
  check_member(rank, static_cast<int>(was.size()));
  // This rank has not come as far as the one that was dealt the step; it deals as that one did.
  if (begun && !in_step() && !next(state_.epoch)) next(state_.epoch + 1);
  if (in_step()) state_.dealt_as = renumbered(state_.dealt_as, was);
  rank_ = rank;
  world_size_ = static_cast<int>(was.size());
}

Dealer::State Dealer::state_to_save() const {
  State saved = state_;
  saved.dealt_to = 0;
  saved.dealt_as.clear();
  return saved;
}

OrderState Dealer::save(Scope scope) const {
  const State state = scope == Scope::to_save ? state_to_save() : state_;
  OrderState saved;
  saved.numbers = {{"rows", state.rows},
                   {"seed", static_cast<int64_t>(state.seed)},
                   {"epoch", state.epoch},
                   {"position", state.position}};
  saved.lists = {{"left_over", state.left_over}};
  save_step(saved, state.dealt_to, state.dealt_as);
  return saved;
}

void Dealer::restore(const OrderState& saved) {
  State state;
  state.rows = number_of(saved, "rows");
  state.seed = static_cast<uint64_t>(number_of(saved, "seed"));
  state.epoch = number_of(saved, "epoch");
  state.position = number_of(saved, "position");
  state.left_over = list_of(saved, "left_over");
  restore_step(saved, state.dealt_to, state.dealt_as);
  load(state);
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
