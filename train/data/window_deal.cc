// SPDX-License-Identifier: Apache-2.0
#include "train/data/window_deal.h"

#include <algorithm>

#include "common/error.h"

namespace af::train {
namespace {

class Step {
 public:
  Step(const std::vector<OpenWindow>& open, int64_t next_window,
       const std::vector<int64_t>& rows_of_window, int world)
      : rows_(rows_of_window), owned_(static_cast<size_t>(world)) {
    deal_.of_rank.resize(static_cast<size_t>(world));
    deal_.open = open;
    deal_.next_window = next_window;
    for (size_t i = 0; i < open.size(); ++i)
      if (open[i].readers.empty())
        ownerless_.push_back(i);
      else
        owned_[static_cast<size_t>(open[i].readers.front())].push_back(i);
  }

  // From windows that are or become the rank's own. Returns how many rows are missing.
  int64_t take_own(int rank, int64_t rows) {
    for (const size_t i : owned_[static_cast<size_t>(rank)]) rows = take(rank, i, rows);
    while (rows > 0) {
      size_t index = deal_.open.size();
      if (next_ownerless_ < ownerless_.size()) {
        index = ownerless_[next_ownerless_++];
      } else if (deal_.next_window < static_cast<int64_t>(rows_.size())) {
        deal_.open.push_back({.window = deal_.next_window++});
      } else {
        break;
      }
      deal_.open[index].readers = {rank};
      rows = take(rank, index, rows);
    }
    return rows;
  }

  // From others' windows: those that the rank has read already, then the one with most rows left.
  void help(int rank, int64_t rows) {
    while (rows > 0) {
      size_t best = deal_.open.size();
      bool best_is_read = false;
      for (size_t i = 0; i < deal_.open.size(); ++i) {
        if (left(i) == 0) continue;
        const bool read = has_read(deal_.open[i], rank);
        if (best == deal_.open.size() || (read && !best_is_read) ||
            (read == best_is_read && left(i) > left(best))) {
          best = i;
          best_is_read = read;
        }
      }
      if (best == deal_.open.size()) throw Error("window dealer: fewer rows left than a step has");
      if (!best_is_read) deal_.open[best].readers.push_back(rank);
      rows = take(rank, best, rows);
    }
  }

  WindowDeal take_result() { return std::move(deal_); }

 private:
  static bool has_read(const OpenWindow& open, int rank) {
    return std::find(open.readers.begin(), open.readers.end(), rank) != open.readers.end();
  }
  int64_t all_rows(size_t index) const {
    return rows_[static_cast<size_t>(deal_.open[index].window)];
  }
  int64_t left(size_t index) const { return rows_left(deal_.open[index], all_rows(index)); }

  // Missed places first. Returns how many rows are still wanted.
  int64_t take(int rank, size_t index, int64_t wanted) {
    OpenWindow& open = deal_.open[index];
    auto& mine = deal_.of_rank[static_cast<size_t>(rank)];
    while (wanted > 0 && !open.missed.empty()) {
      OpenWindow::Places& missed = open.missed.front();
      const int64_t last = std::min(missed.last, missed.first + wanted);
      mine.push_back({open.window, {missed.first, last}});
      wanted -= last - missed.first;
      missed.first = last;
      if (missed.first == missed.last) open.missed.erase(open.missed.begin());
    }
    const int64_t last = std::min(all_rows(index), open.position + wanted);
    if (last > open.position) mine.push_back({open.window, {open.position, last}});
    wanted -= last - open.position;
    open.position = last;
    return wanted;
  }

  const std::vector<int64_t>& rows_;
  std::vector<std::vector<size_t>> owned_;
  std::vector<size_t> ownerless_;
  size_t next_ownerless_ = 0;
  WindowDeal deal_;
};

}  // namespace

int64_t rows_left(const OpenWindow& open, int64_t rows) {
  int64_t left = rows - open.position;
  for (const auto& missed : open.missed) left += missed.last - missed.first;
  return left;
}

WindowDeal deal_windows(const std::vector<OpenWindow>& open, int64_t next_window,
                        const std::vector<int64_t>& rows_of_window, int64_t total, int world) {
  Step step(open, next_window, rows_of_window, world);
  std::vector<int64_t> missing(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    const int64_t share = total / world + (rank < total % world ? 1 : 0);
    missing[static_cast<size_t>(rank)] = step.take_own(rank, share);
  }
  // Behind all the owners: what they need themselves is not to be taken from them.
  for (int rank = 0; rank < world; ++rank) step.help(rank, missing[static_cast<size_t>(rank)]);
  return step.take_result();
}

}  // namespace af::train
