// SPDX-License-Identifier: Apache-2.0
#include "af/train/window_dealer.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "common/error.h"
#include "train/data/dealt_step.h"
#include "train/data/order_state.h"
#include "train/data/random_order.h"
#include "train/data/window_deal.h"

namespace af::train {

struct WindowDealer::Epoch {
  std::vector<int64_t> blocks;          // permuted
  std::vector<int64_t> rows_of_window;  // how many
};

WindowDealer::WindowDealer(std::vector<int64_t> block_rows, int64_t global_batch, uint64_t seed,
                           WindowOptions options)
    : global_batch_(global_batch), last_(options.last) {
  if (global_batch < 1)
    throw Error::format("window dealer: a batch of {} rows: at least 1 is needed", global_batch);
  if (options.window_blocks < 1)
    throw Error::format("window dealer: a window of {} blocks: at least 1 is needed",
                        options.window_blocks);
  std::vector<int64_t> first_rows;
  first_rows.reserve(block_rows.size());
  for (const int64_t rows : block_rows) {
    if (rows < 0) throw Error::format("window dealer: a block of {} rows", rows);
    first_rows.push_back(state_.rows);
    state_.rows += rows;
  }
  state_.blocks = static_cast<int64_t>(block_rows.size());
  state_.window_blocks = options.window_blocks;
  state_.seed = seed;
  block_rows_ = std::make_shared<const std::vector<int64_t>>(std::move(block_rows));
  first_rows_ = std::make_shared<const std::vector<int64_t>>(std::move(first_rows));
  make_order();
}

// What the epoch is -----------------------------------------------------------------------------

int64_t WindowDealer::windows() const {
  return (state_.blocks + state_.window_blocks - 1) / state_.window_blocks;
}

int64_t WindowDealer::steps_of_epoch() const {
  return last_ == LastBatch::drop ? state_.rows / global_batch_
                                  : (state_.rows + global_batch_ - 1) / global_batch_;
}

void WindowDealer::make_order() {
  auto epoch = std::make_shared<Epoch>();
  epoch->blocks.resize(static_cast<size_t>(state_.blocks));
  std::iota(epoch->blocks.begin(), epoch->blocks.end(), int64_t{0});
  shuffle(epoch->blocks, stream_of(state_.seed, state_.epoch, 0));
  epoch->rows_of_window.resize(static_cast<size_t>(windows()));
  for (size_t i = 0; i < epoch->blocks.size(); ++i)
    epoch->rows_of_window[i / static_cast<size_t>(state_.window_blocks)] +=
        (*block_rows_)[static_cast<size_t>(epoch->blocks[i])];
  epoch_order_ = std::move(epoch);
  window_rows_.clear();
}

void WindowDealer::begin_epoch(int64_t epoch) {
  state_.epoch = epoch;
  state_.done = 0;
  state_.next_window = 0;
  state_.open.clear();
  state_.dealt_to = 0;
  state_.dealt_as.clear();
  make_order();
}

void WindowDealer::finish_epoch(int64_t epoch) {
  if (state_.epoch <= epoch) begin_epoch(epoch + 1);
}

std::vector<int64_t> WindowDealer::blocks_of(int64_t window) const {
  const auto& blocks = epoch_order_->blocks;
  const int64_t first = window * state_.window_blocks;
  const int64_t last = std::min(state_.blocks, first + state_.window_blocks);
  return {blocks.begin() + first, blocks.begin() + last};
}

const std::vector<int64_t>& WindowDealer::rows_of(int64_t window) {
  auto& kept = window_rows_[window];
  if (!kept) {
    std::vector<int64_t> rows;
    rows.reserve(static_cast<size_t>(epoch_order_->rows_of_window[static_cast<size_t>(window)]));
    for (const int64_t block : blocks_of(window)) {
      const int64_t first = (*first_rows_)[static_cast<size_t>(block)];
      for (int64_t i = 0; i < (*block_rows_)[static_cast<size_t>(block)]; ++i)
        rows.push_back(first + i);
    }
    shuffle(rows, stream_of(state_.seed, state_.epoch, window + 1));
    kept = std::make_shared<const std::vector<int64_t>>(std::move(rows));
  }
  return *kept;
}

std::vector<int64_t> WindowDealer::blocks_in_use() const {
  std::vector<int64_t> used;
  // Within a step, readers are numbered in the world that dealt it.
  const int me = in_step() ? state_.dealt_as[static_cast<size_t>(rank_)] : rank_;
  for (const OpenWindow& open : state_.open)
    if (std::find(open.readers.begin(), open.readers.end(), me) != open.readers.end()) {
      const auto blocks = blocks_of(open.window);
      used.insert(used.end(), blocks.begin(), blocks.end());
    }
  return used;
}

// Steps -----------------------------------------------------------------------------------------

int64_t WindowDealer::rows_of_step() const {
  const int64_t left = state_.rows - state_.done;
  return left < global_batch_ && last_ == LastBatch::drop ? 0 : std::min(left, global_batch_);
}

std::optional<std::vector<int64_t>> WindowDealer::next(int64_t epoch) {
  if (epoch < state_.epoch) return std::nullopt;
  if (epoch > state_.epoch) begin_epoch(epoch);
  if (!in_step()) {
    if (rows_of_step() == 0) return std::nullopt;
    state_.dealt_to = world_size_;
    state_.dealt_as = dealt_to_all(world_size_);
  }
  std::vector<int64_t> mine;
  const int as = state_.dealt_as[static_cast<size_t>(rank_)];
  if (as < 0) return mine;
  const WindowDeal deal =
      deal_windows(state_.open, state_.next_window, epoch_order_->rows_of_window, rows_of_step(),
                   state_.dealt_to);
  for (const WindowSlice& slice : deal.of_rank[static_cast<size_t>(as)]) {
    const auto& rows = rows_of(slice.window);
    mine.insert(mine.end(), rows.begin() + slice.places.first, rows.begin() + slice.places.last);
  }
  return mine;
}

void WindowDealer::complete() {
  if (!in_step()) throw Error("window dealer: complete() without a step");
  const int64_t rows = rows_of_step();
  WindowDeal deal = deal_windows(state_.open, state_.next_window, epoch_order_->rows_of_window,
                                 rows, state_.dealt_to);
  const std::vector<int> now = ranks_now(state_.dealt_as, state_.dealt_to);
  int64_t lost = 0;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    if (now[rank] >= 0) continue;
    for (const WindowSlice& slice : deal.of_rank[rank]) {
      const auto open =
          std::find_if(deal.open.begin(), deal.open.end(),
                       [&](const OpenWindow& one) { return one.window == slice.window; });
      open->missed.push_back(slice.places);
      lost += slice.places.last - slice.places.first;
    }
  }
  state_.open.clear();
  for (OpenWindow& open : deal.open) {
    if (rows_left(open, epoch_order_->rows_of_window[static_cast<size_t>(open.window)]) == 0) {
      window_rows_.erase(open.window);
      continue;
    }
    std::vector<int> readers;
    for (const int reader : open.readers)
      if (now[static_cast<size_t>(reader)] >= 0)
        readers.push_back(now[static_cast<size_t>(reader)]);
    open.readers = std::move(readers);
    state_.open.push_back(std::move(open));
  }
  state_.next_window = deal.next_window;
  state_.done += rows - lost;
  state_.dealt_to = 0;
  state_.dealt_as.clear();
}

// Worlds ----------------------------------------------------------------------------------------

void WindowDealer::set_world(int rank, int world_size) {
  check_member(rank, world_size);
  if (in_step()) throw Error("window dealer: set_world() within a step");
  rank_ = rank;
  world_size_ = world_size;
  for (OpenWindow& open : state_.open) open.readers.clear();
}

void WindowDealer::change_world(int rank, const std::vector<int>& was, bool begun) {
  check_member(rank, static_cast<int>(was.size()));
  // This rank has not come as far as the one that was dealt the step; it deals as that one did.
  if (begun && !in_step() && !next(state_.epoch)) next(state_.epoch + 1);
  if (in_step()) {
    state_.dealt_as = renumbered(state_.dealt_as, was);
  } else {
    for (OpenWindow& open : state_.open) {
      std::vector<int> readers;
      for (const int reader : open.readers) {
        const auto now = std::find(was.begin(), was.end(), reader);
        if (now != was.end()) readers.push_back(static_cast<int>(now - was.begin()));
      }
      open.readers = std::move(readers);
    }
  }
  rank_ = rank;
  world_size_ = static_cast<int>(was.size());
}

// State -----------------------------------------------------------------------------------------

WindowDealer::State WindowDealer::state_to_save() const {
  State saved = state_;
  saved.dealt_to = 0;
  saved.dealt_as.clear();
  for (OpenWindow& open : saved.open) open.readers.clear();
  return saved;
}

OrderState WindowDealer::save(Scope scope) const {
  const State state = scope == Scope::to_save ? state_to_save() : state_;
  OrderState saved;
  saved.numbers = {{"rows", state.rows},
                   {"blocks", state.blocks},
                   {"window_blocks", state.window_blocks},
                   {"seed", static_cast<int64_t>(state.seed)},
                   {"epoch", state.epoch},
                   {"position", state.done},
                   {"next_window", state.next_window}};
  auto& windows = saved.lists["open_windows"];
  auto& positions = saved.lists["open_positions"];
  auto& missed = saved.lists["missed"];    // window, first place, last; and so on
  auto& readers = saved.lists["readers"];  // window, rank; and so on
  for (const OpenWindow& open : state.open) {
    windows.push_back(open.window);
    positions.push_back(open.position);
    for (const auto& places : open.missed)
      missed.insert(missed.end(), {open.window, places.first, places.last});
    for (const int rank : open.readers) readers.insert(readers.end(), {open.window, rank});
  }
  save_step(saved, state.dealt_to, state.dealt_as);
  return saved;
}

void WindowDealer::restore(const OrderState& saved) {
  State state;
  state.rows = number_of(saved, "rows");
  state.blocks = number_of(saved, "blocks");
  state.window_blocks = number_of(saved, "window_blocks");
  state.seed = static_cast<uint64_t>(number_of(saved, "seed"));
  state.epoch = number_of(saved, "epoch");
  state.done = number_of(saved, "position");
  state.next_window = number_of(saved, "next_window");
  const auto& windows = list_of(saved, "open_windows");
  const auto& positions = list_of(saved, "open_positions");
  const auto& missed = list_of(saved, "missed");
  const auto& readers = list_of(saved, "readers");
  if (positions.size() != windows.size() || missed.size() % 3 != 0 || readers.size() % 2 != 0)
    throw Error("the saved position in the data makes no sense: lists of other lengths");
  for (size_t i = 0; i < windows.size(); ++i) {
    OpenWindow open{.window = windows[i], .position = positions[i]};
    for (size_t at = 0; at < missed.size(); at += 3)
      if (missed[at] == open.window) open.missed.push_back({missed[at + 1], missed[at + 2]});
    for (size_t at = 0; at < readers.size(); at += 2)
      if (readers[at] == open.window) open.readers.push_back(static_cast<int>(readers[at + 1]));
    state.open.push_back(std::move(open));
  }
  restore_step(saved, state.dealt_to, state.dealt_as);
  load(state);
}

// That no row is dealt twice or lost: what is done, open and not yet opened are all the rows.
void WindowDealer::check(const State& state) const {
  const auto& rows = epoch_order_->rows_of_window;
  int64_t found = state.done;
  bool good = state.done >= 0 && state.next_window >= 0 && state.next_window <= windows();
  std::set<int64_t> seen;
  for (const OpenWindow& open : state.open) {
    good = good && open.window >= 0 && open.window < state.next_window &&
           seen.insert(open.window).second;
    if (!good) break;
    const int64_t all = rows[static_cast<size_t>(open.window)];
    good = open.position >= 0 && open.position <= all;
    for (const auto& missed : open.missed)
      good =
          good && missed.first >= 0 && missed.first < missed.last && missed.last <= open.position;
    const int ranks = state.dealt_to > 0 ? state.dealt_to : world_size_;
    for (const int rank : open.readers) good = good && rank >= 0 && rank < ranks;
    found += rows_left(open, all);
  }
  for (int64_t window = state.next_window; good && window < windows(); ++window)
    found += rows[static_cast<size_t>(window)];
  for (const int as : state.dealt_as) good = good && as < state.dealt_to;
  if (state.dealt_to > 0) good = good && static_cast<int>(state.dealt_as.size()) == world_size_;
  if (!good || found != state.rows)
    throw Error::format("the saved position, {} rows of epoch {} in {}, makes no sense", state.done,
                        state.epoch, state.rows);
}

void WindowDealer::load(const State& state) {
  if (state.rows != state_.rows || state.blocks != state_.blocks ||
      state.window_blocks != state_.window_blocks)
    throw Error::format(
        "the saved position is in a data set of {} rows in {} blocks dealt in windows of {}, and "
        "this one has {} rows in {} blocks and windows of {}",
        state.rows, state.blocks, state.window_blocks, state_.rows, state_.blocks,
        state_.window_blocks);
  if (state.epoch < 0) throw Error::format("the saved position is in epoch {}", state.epoch);
  const State before = state_;
  state_.seed = state.seed;
  state_.epoch = state.epoch;
  make_order();
  try {
    check(state);
  } catch (...) {
    state_ = before;
    make_order();
    throw;
  }
  state_ = state;
}

}  // namespace af::train
