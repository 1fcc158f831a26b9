// SPDX-License-Identifier: Apache-2.0
#include "af/train/window_dealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "af/train/dealer.h"
#include "common/error.h"
#include "tests/unit/train_data/order_simulation.h"
#include "train/data/window_deal.h"

namespace af::train {
namespace {

Rows sorted(Rows rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

Rows numbers(int64_t count) {
  Rows all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

// `blocks` of `rows` rows and a shorter one, as files have them; some files in between end early.
Rows blocks_of(int64_t blocks, int64_t rows) {
  Rows all(static_cast<size_t>(blocks), rows);
  if (blocks > 1) all.back() = rows / 2 + 1;
  if (blocks > 5) all[3] = 1;
  if (blocks > 8) all[6] = 0;
  return all;
}

int64_t sum(const Rows& all) {
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

Rows epoch_alone(WindowDealer& order, int64_t epoch) {
  Rows all;
  for (auto rows = order.next(epoch); rows; rows = order.next(epoch)) {
    all.insert(all.end(), rows->begin(), rows->end());
    order.complete();
  }
  return all;
}

TEST(WindowDealer, EveryRowOnceInAnEpochAtEveryWorldSize) {
  for (const int64_t blocks : {0, 1, 2, 9, 40})
    for (const int64_t window : {1, 3, 8})
      for (const int64_t batch : {1, 7, 64})
        for (const int world : {1, 2, 3, 4, 7}) {
          SCOPED_TRACE(fmt::format("{} blocks, windows of {}, batch {}, world {}", blocks, window,
                                   batch, world));
          const Rows rows = blocks_of(blocks, 10);
          OrderSimulation simulation(1, [&] {
            return std::make_unique<WindowDealer>(rows, batch, 5, WindowOptions{window});
          });
          simulation.start(world);
          for (const int64_t epoch : {0, 1, 3}) {
            Rows seen;
            const size_t before = simulation.step_sizes().size();
            simulation.run_epoch(epoch, /*quiet=*/true, seen);
            ASSERT_EQ(sorted(seen), numbers(sum(rows)));
            // The same steps as with any other world.
            const auto& sizes = simulation.step_sizes();
            ASSERT_EQ(int64_t(sizes.size() - before), (sum(rows) + batch - 1) / batch);
            for (size_t i = before; i + 1 < sizes.size(); ++i) ASSERT_EQ(sizes[i], size_t(batch));
          }
        }
}

TEST(WindowDealer, EveryRowOnceWhateverHappensToTheWorld) {
  int losses = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int64_t counts[] = {1, 2, 9, 30};
    const Rows rows = blocks_of(counts[seed % 4], 7);
    const int64_t window = int64_t(seed % 5) + 1;
    OrderSimulation simulation(seed, [&] {
      return std::make_unique<WindowDealer>(rows, seed % 3 == 0 ? 3 : 8, 3, WindowOptions{window});
    });
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      Rows seen;
      simulation.run_epoch(epoch, /*quiet=*/false, seen);
      ASSERT_EQ(sorted(seen), numbers(sum(rows))) << "epoch " << epoch;
    }
    losses += simulation.losses();
  }
  EXPECT_GT(losses, 5000);  // it did try
}

// The same simulation on the order by row, which has tests of its own too.
TEST(WindowDealer, TheOrderByRowStandsTheSameSimulation) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    OrderSimulation simulation(seed, [] { return std::make_unique<Dealer>(57, 8, 3); });
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      Rows seen;
      simulation.run_epoch(epoch, /*quiet=*/false, seen);
      ASSERT_EQ(sorted(seen), numbers(57)) << "epoch " << epoch;
    }
  }
}

TEST(WindowDealer, NoBlockIsReadTwiceButAtTheEndOfAnEpoch) {
  const Rows rows(80, 10);
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    OrderSimulation simulation(
        1, [&] { return std::make_unique<WindowDealer>(rows, 24, 5, WindowOptions{4}); });
    simulation.start(world);
    Rows seen;
    simulation.run_epoch(0, /*quiet=*/true, seen);
    // 20 windows. A rank whose last window is done helps with another one's, and reads it once.
    const int64_t helped = simulation.blocks_read() - 80;
    EXPECT_LE(helped, 4 * 2 * (world - 1)) << world;
    EXPECT_TRUE(world > 1 || helped == 0);
  }
}

TEST(WindowDealer, RanksThatStayReadNothingTwice) {
  const Rows rows(60, 10);
  const auto make = [&](int rank, int world) {
    WindowDealer order(rows, 12, 5, {.window_blocks = 2});
    order.set_world(rank, world);
    return order;
  };
  WindowDealer one = make(1, 3);
  WindowDealer two = make(2, 3);
  for (WindowDealer* order : {&one, &two}) {
    ASSERT_TRUE(order->next(0));
    order->complete();
  }
  const auto before = one.blocks_in_use();
  ASSERT_EQ(before.size(), 2U);
  const auto vanished = one.state().open[0];
  one.change_world(0, {1, 2, -1}, false);
  two.change_world(1, {1, 2, -1}, false);
  EXPECT_EQ(one.blocks_in_use(), before);
  // The one that has come takes over the window of the one that is gone, where it stands.
  WindowDealer three = make(0, 1);
  three.change_world(2, {1, 2, -1}, false);
  three.restore(one.save(DataOrder::Scope::to_send));
  const auto mine = three.next(0);
  ASSERT_TRUE(mine);
  three.complete();
  EXPECT_EQ(three.state().open[0].window, vanished.window);
  EXPECT_EQ(three.state().open[0].position, vanished.position + 4);
  EXPECT_EQ(three.state().open[0].readers, std::vector<int>{2});
  EXPECT_EQ(three.state().next_window, 3);
}

TEST(WindowDealer, OpenWindowsComeFirstInTheNextWorld) {
  const Rows rows(60, 10);
  WindowDealer order(rows, 12, 5, {.window_blocks = 2});
  order.set_world(0, 4);
  ASSERT_TRUE(order.next(0));
  order.complete();
  ASSERT_EQ(order.state().open.size(), 4U);
  WindowDealer alone(rows, 12, 5, {.window_blocks = 2});
  alone.restore(order.save(DataOrder::Scope::to_save));
  for (int step = 0; step < 5; ++step) {  // 4 windows with 17 rows left each
    EXPECT_EQ(alone.next(0)->size(), 12U);
    alone.complete();
    EXPECT_EQ(alone.state().next_window, 4);
  }
  alone.next(0);
  alone.complete();
  EXPECT_EQ(alone.state().next_window, 5);
}

TEST(WindowDealer, RowsOfAVanishedRankAreDealtFirstFromItsWindow) {
  const Rows rows(60, 10);
  WindowDealer order(rows, 12, 5, {.window_blocks = 2});
  order.set_world(0, 2);
  WindowDealer lost = order;
  lost.set_world(1, 2);
  const auto lost_rows = *lost.next(0);
  ASSERT_TRUE(order.next(0));
  order.change_world(0, {0}, true);
  order.complete();
  EXPECT_EQ(order.state().done, 6);
  Rows next;
  while (next.size() < 20) {
    const auto more = *order.next(0);
    next.insert(next.end(), more.begin(), more.end());
    order.complete();
  }
  // Its own window first (14 rows left), then the other: the lost rows and what is behind them.
  EXPECT_EQ(Rows(next.begin() + 14, next.begin() + 20), lost_rows);
}

TEST(WindowDealer, TheLastBatchIsKeptOrDropped) {
  const Rows rows(5, 5);
  for (const LastBatch last : {LastBatch::keep, LastBatch::drop}) {
    const size_t expected = last == LastBatch::keep ? 25 : 24;
    WindowDealer windows(rows, 8, 1, {.window_blocks = 2, .last = last});
    EXPECT_EQ(epoch_alone(windows, 0).size(), expected);
    EXPECT_TRUE(windows.at_end());
    EXPECT_EQ(windows.steps_of_epoch(), last == LastBatch::keep ? 4 : 3);
    Dealer by_row(25, 8, 1, last);
    size_t seen = 0;
    for (auto dealt = by_row.next(0); dealt; dealt = by_row.next(0), seen += 8) by_row.complete();
    EXPECT_EQ(seen, last == LastBatch::keep ? 32U : 24U);
    EXPECT_TRUE(by_row.at_end());
    EXPECT_EQ(by_row.steps_of_epoch(), last == LastBatch::keep ? 4 : 3);
    ASSERT_TRUE(by_row.next(1));
  }
}

TEST(WindowDealer, TheOrderComesFromSeedAndEpochAlone) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    WindowDealer dealer(Rows(20, 10), 8, seed, {.window_blocks = 4});
    return epoch_alone(dealer, epoch);
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 1), order(1, 0));
  EXPECT_NE(order(1, 1), order(2, 0));
}

// Checkpoints of other versions and machines rest on this stream: it must never change.
TEST(WindowDealer, TheStreamIsFrozen) {
  WindowDealer dealer({3, 3, 2}, 8, 42, {.window_blocks = 2});
  EXPECT_EQ(epoch_alone(dealer, 0), (Rows{4, 3, 0, 2, 5, 1, 6, 7}));
}

TEST(WindowDealer, RowsOfAWindowAreMixed) {
  WindowDealer dealer(Rows(16, 64), 64, 1, {.window_blocks = 4});
  const auto rows = *dealer.next(0);
  std::set<int64_t> blocks;
  for (const int64_t row : rows) blocks.insert(row / 64);
  EXPECT_EQ(blocks.size(), 4U);
}

TEST(WindowDealer, RefusesWhatMakesNoSense) {
  EXPECT_THROW(WindowDealer({1}, 0, 0), Error);
  EXPECT_THROW(WindowDealer({1}, 1, 0, {.window_blocks = 0}), Error);
  EXPECT_THROW(WindowDealer({-1}, 1, 0), Error);
  WindowDealer dealer(Rows(10, 10), 8, 0);
  EXPECT_THROW(dealer.set_world(2, 2), Error);
  EXPECT_THROW(dealer.complete(), Error);
  ASSERT_TRUE(dealer.next(0));
  EXPECT_THROW(dealer.set_world(0, 2), Error);
}

TEST(WindowDealer, AStateThatDoesNotFitIsRefused) {
  WindowDealer dealer(Rows(10, 10), 8, 0, {.window_blocks = 2});
  ASSERT_TRUE(dealer.next(0));
  dealer.complete();
  const auto refused = [&](const std::function<void(WindowDealer::State&)>& spoil) {
    WindowDealer::State state = dealer.state();
    spoil(state);
    EXPECT_THROW(dealer.load(state), Error);
  };
  refused([](auto& state) { state.rows = 99; });
  refused([](auto& state) { state.window_blocks = 4; });
  refused([](auto& state) { state.done = 7; });
  refused([](auto& state) { state.next_window = 2; });
  refused([](auto& state) { state.open[0].position = 9; });
  refused([](auto& state) { state.open[0].window = 1; });
  refused([](auto& state) { state.open[0].missed = {{0, 3}}; });
  refused([](auto& state) { state.open[0].readers = {1}; });
  refused([](auto& state) { state.open.push_back(state.open[0]); });
  refused([](auto& state) { state.epoch = -1; });
  OrderState by_row = Dealer(100, 8, 0).save(DataOrder::Scope::to_save);
  EXPECT_THROW(dealer.restore(by_row), Error);
  EXPECT_EQ(dealer.next(0)->size(), 8U);  // and nothing has changed
  EXPECT_EQ(dealer.state().done, 8);
}

// Which windows a step takes rows from: rank, window, first place, last.
TEST(WindowDeal, OwnThenOwnerlessThenNewThenTheFullest) {
  const std::vector<int64_t> rows = {10, 10, 10};
  const auto places = [&](const WindowDeal& deal) {
    Rows all;
    for (size_t rank = 0; rank < deal.of_rank.size(); ++rank)
      for (const auto& slice : deal.of_rank[rank])
        all.insert(all.end(), {int64_t(rank), slice.window, slice.places.first, slice.places.last});
    return all;
  };
  const OpenWindow own{.window = 0, .position = 8, .readers = {0}};
  const OpenWindow ownerless{.window = 1, .position = 6, .missed = {{1, 2}, {3, 4}}};
  EXPECT_EQ(places(deal_windows({own, ownerless}, 2, rows, 6, 2)),
            (Rows{0, 0, 8, 10, 0, 1, 1, 2, 1, 2, 0, 3}));
  EXPECT_EQ(places(deal_windows({own}, 3, rows, 2, 2)), (Rows{0, 0, 8, 9, 1, 0, 9, 10}));
  const OpenWindow fuller{.window = 2, .position = 2, .readers = {1}};
  const auto helped = deal_windows({own, fuller}, 3, rows, 9, 3);
  EXPECT_EQ(places(helped), (Rows{0, 0, 8, 10, 0, 2, 5, 6, 1, 2, 2, 5, 2, 2, 6, 9}));
  EXPECT_EQ(helped.open[1].readers, (std::vector<int>{1, 0, 2}));
}

}  // namespace
}  // namespace af::train
