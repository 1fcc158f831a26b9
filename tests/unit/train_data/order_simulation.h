// SPDX-License-Identifier: Apache-2.0
// Worlds of random sizes that deal with an order, are lost, shrink, grow and start again from a
// checkpoint at random moments. It does what DataParallel does with ranks that differ by one step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "af/train/data_order.h"

namespace af::train {

using Rows = std::vector<int64_t>;

// A process: its order, and the blocks that it has in memory.
struct SimulatedRank {
  std::unique_ptr<DataOrder> order;
  std::set<int64_t> in_memory;
};

class OrderSimulation {
 public:
  using Make = std::function<std::unique_ptr<DataOrder>()>;
  OrderSimulation(uint64_t seed, Make make) : random_(seed), make_(std::move(make)) {
    start(pick(1, 6));
  }

  // `quiet`: nothing happens to the world.
  void run_epoch(int64_t epoch, bool quiet, Rows& seen) {
    while (step(epoch, quiet, seen) && !testing::Test::HasFailure()) {
    }
    for (SimulatedRank& rank : ranks_) rank.in_memory.clear();
  }
  void start(int size) {
    ranks_.clear();
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back({make_(), {}});
      ranks_.back().order->set_world(rank, size);
    }
  }

  int world() const { return static_cast<int>(ranks_.size()); }
  int losses() const { return losses_; }
  int64_t steps() const { return steps_; }
  int64_t blocks_read() const { return blocks_read_; }
  const std::vector<size_t>& step_sizes() const { return step_sizes_; }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  void agree() {
    const OrderState first = ranks_[0].order->save(DataOrder::Scope::to_send);
    for (const SimulatedRank& rank : ranks_) {
      const OrderState mine = rank.order->save(DataOrder::Scope::to_send);
      ASSERT_EQ(mine.numbers, first.numbers);
      ASSERT_EQ(mine.lists, first.lists);
    }
  }

  // A random part of the ranks in a random order with some new ones, but one of `needed` at least.
  std::vector<int> next_members(const std::vector<int>& needed) {
    std::vector<int> was;
    const int keeper = needed[size_t(pick(0, int(needed.size()) - 1))];
    for (int rank = 0; rank < world(); ++rank)
      if (rank == keeper || chance(70)) was.push_back(rank);
    for (int joining = chance(30) ? pick(1, 2) : 0; joining > 0; --joining) was.push_back(-1);
    std::shuffle(was.begin(), was.end(), random_);
    return was;
  }

  // `furthest`: by old rank, whether it has come furthest. The others get the state of one of them.
  void change(const std::vector<int>& was, const std::vector<bool>& furthest, bool begun) {
    ++losses_;
    std::vector<SimulatedRank> next;
    const auto ahead = [&](size_t rank) { return was[rank] >= 0 && furthest[size_t(was[rank])]; };
    for (size_t rank = 0; rank < was.size(); ++rank) {
      if (was[rank] < 0)
        next.push_back({make_(), {}});
      else
        next.push_back(std::move(ranks_[size_t(was[rank])]));
      next.back().order->change_world(int(rank), was, begun && ahead(rank));
    }
    size_t giver = 0;
    while (!ahead(giver)) ++giver;
    const OrderState state = next[giver].order->save(DataOrder::Scope::to_send);
    for (size_t rank = 0; rank < was.size(); ++rank)
      if (!ahead(rank)) next[rank].order->restore(state);
    ranks_ = std::move(next);
    agree();
  }

  std::vector<int> all_ranks() const {
    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // What each rank gets; nothing when the epoch is over, for all alike.
  std::vector<Rows> deal(int64_t epoch) {
    std::vector<Rows> dealt;
    for (SimulatedRank& rank : ranks_)
      if (auto rows = rank.order->next(epoch)) dealt.push_back(std::move(*rows));
    EXPECT_TRUE(dealt.empty() || dealt.size() == ranks_.size()) << "some say the epoch is over";
    return dealt;
  }

  void read(SimulatedRank& rank, const Rows& rows) {
    if (rank.order->blocks() == nullptr) return;
    for (const int64_t row : rows) {
      int64_t block = 0;
      for (int64_t first = 0;; first += (*rank.order->blocks())[size_t(block++)])
        if (row < first + (*rank.order->blocks())[size_t(block)]) break;
      if (rank.in_memory.insert(block).second) ++blocks_read_;
    }
  }
  void complete(SimulatedRank& rank) {
    rank.order->complete();
    const auto used = rank.order->blocks_in_use();
    std::set<int64_t> kept;
    for (const int64_t block : used)
      if (rank.in_memory.contains(block)) kept.insert(block);
    rank.in_memory = std::move(kept);
  }

  void lose_before_the_step(int64_t epoch) {
    if (chance(4)) {  // the whole job starts again, with the state of a checkpoint
      const OrderState saved = ranks_[0].order->save(DataOrder::Scope::to_save);
      start(pick(1, 6));
      for (SimulatedRank& rank : ranks_) rank.order->restore(saved);
    }
    if (chance(10))  // a change that all have agreed on
      change(next_members(all_ranks()), std::vector<bool>(ranks_.size(), true), false);
    if (chance(10)) {  // lost when only some had been dealt the step
      std::vector<int> within;
      for (int rank = 0; rank < world(); ++rank)
        if (chance(50) && ranks_[size_t(rank)].order->next(epoch)) within.push_back(rank);
      if (!within.empty())
        change(next_members(within), std::vector<bool>(ranks_.size(), true), true);
    }
  }

  void complete_on_some(int64_t epoch) {
    std::vector<int> done;
    std::vector<bool> furthest(ranks_.size());
    for (int rank = 0; rank < world(); ++rank)
      if (chance(50) || (rank + 1 == world() && done.empty())) {
        complete(ranks_[size_t(rank)]);
        furthest[size_t(rank)] = true;
        done.push_back(rank);
      }
    bool begun = false;  // and some of these may have begun the next step already
    const std::vector<int> was = next_members(done);
    for (const int rank : was)
      if (rank >= 0 && furthest[size_t(rank)] && chance(50))
        begun = ranks_[size_t(rank)].order->next(epoch).has_value() || begun;
    change(was, furthest, begun);
  }

  bool step(int64_t epoch, bool quiet, Rows& seen) {
    if (!quiet) lose_before_the_step(epoch);
    if (deal(epoch).empty()) return false;
    while (!quiet && chance(20))  // lost in the reduction, on all ranks
      change(next_members(all_ranks()), std::vector<bool>(ranks_.size(), true), true);
    // What counts as learned is what the ranks that complete the step have of it.
    const auto dealt = deal(epoch);
    size_t rows = 0;
    for (size_t rank = 0; rank < dealt.size(); ++rank) {
      read(ranks_[rank], dealt[rank]);
      seen.insert(seen.end(), dealt[rank].begin(), dealt[rank].end());
      rows += dealt[rank].size();
    }
    if (quiet) {
      const auto size = [](const Rows& one, const Rows& two) { return one.size() < two.size(); };
      const auto [least, most] = std::minmax_element(dealt.begin(), dealt.end(), size);
      EXPECT_LE(most->size() - least->size(), 1U) << "shares differ by more than a row";
    }
    step_sizes_.push_back(rows);
    ++steps_;
    if (!quiet && chance(20))  // lost when the reduction was done on some only
      complete_on_some(epoch);
    else
      for (SimulatedRank& rank : ranks_) complete(rank);
    agree();
    return true;
  }

  std::mt19937_64 random_;
  Make make_;
  std::vector<SimulatedRank> ranks_;
  int losses_ = 0;
  int64_t steps_ = 0;
  int64_t blocks_read_ = 0;
  std::vector<size_t> step_sizes_;
};

}  // namespace af::train
