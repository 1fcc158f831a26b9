// SPDX-License-Identifier: Apache-2.0
#include "af/train/dealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "common/error.h"

namespace af::train {
namespace {

using Rows = std::vector<int64_t>;

Rows sorted(Rows rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

Rows numbers(int64_t count) {
  Rows all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

// The ranks of a world, each with a dealer of its own, in step with each other.
std::vector<Dealer> make_world(int size, int64_t rows, int64_t batch, uint64_t seed = 7) {
  std::vector<Dealer> world(static_cast<size_t>(size), Dealer(rows, batch, seed));
  for (int rank = 0; rank < size; ++rank) world[static_cast<size_t>(rank)].set_world(rank, size);
  return world;
}

// What each rank gets in the next step; empty when the epoch is over.
std::vector<Rows> deal(std::vector<Dealer>& world, int64_t epoch) {
  std::vector<Rows> dealt;
  for (Dealer& dealer : world)
    if (auto rows = dealer.next(epoch)) dealt.push_back(std::move(*rows));
  EXPECT_TRUE(dealt.empty() || dealt.size() == world.size()) << "some say that the epoch is over";
  return dealt;
}

void complete(std::vector<Dealer>& world) {
  for (Dealer& dealer : world) dealer.complete();
}

Rows together(const std::vector<Rows>& dealt) {
  Rows all;
  for (const Rows& rows : dealt) all.insert(all.end(), rows.begin(), rows.end());
  return sorted(all);
}

std::vector<Rows> steps_of_epoch(std::vector<Dealer>& world, int64_t epoch) {
  std::vector<Rows> steps;
  for (auto dealt = deal(world, epoch); !dealt.empty(); dealt = deal(world, epoch)) {
    steps.push_back(together(dealt));
    complete(world);
  }
  return steps;
}

class AnyShape : public testing::TestWithParam<std::tuple<int64_t, int64_t, int>> {};

TEST_P(AnyShape, EveryRowOnceInAnEpoch) {
  const auto [rows, batch, size] = GetParam();
  auto world = make_world(size, rows, batch);
  for (const int64_t epoch : {0, 1, 3}) {
    const auto steps = steps_of_epoch(world, epoch);
    EXPECT_EQ(together(steps), numbers(rows));
    EXPECT_EQ(static_cast<int64_t>(steps.size()), world[0].steps_of_epoch());
  }
}

TEST_P(AnyShape, SharesOfAStepDifferByOneRowAtMost) {
  const auto [rows, batch, size] = GetParam();
  auto world = make_world(size, rows, batch);
  for (auto dealt = deal(world, 0); !dealt.empty(); dealt = deal(world, 0)) {
    std::set<size_t> sizes;
    for (const Rows& mine : dealt) sizes.insert(mine.size());
    EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1U);
    complete(world);
  }
}

INSTANTIATE_TEST_SUITE_P(Dealer, AnyShape,
                         testing::Combine(testing::Values<int64_t>(0, 1, 5, 64, 1437),
                                          testing::Values<int64_t>(1, 7, 64),
                                          testing::Values(1, 2, 3, 4, 7)));

TEST(Dealer, AStepHasTheSameRowsInEveryWorld) {
  auto alone = make_world(1, 1437, 64, 1);
  const auto expected = steps_of_epoch(alone, 2);
  for (const int size : {2, 3, 4, 5}) {
    auto world = make_world(size, 1437, 64, 1);
    EXPECT_EQ(steps_of_epoch(world, 2), expected) << size;
  }
}

TEST(Dealer, RowsAreTheSameUntilTheStepIsCompleted) {
  Dealer dealer(10, 4, 1);
  const auto rows = dealer.next(0);
  EXPECT_TRUE(dealer.in_step());
  EXPECT_EQ(dealer.next(0), rows);
  dealer.complete();
  EXPECT_FALSE(dealer.in_step());
  EXPECT_NE(dealer.next(0), rows);
}

TEST(Dealer, AnEpochThatIsLeftBehindIsOver) {
  Dealer dealer(10, 4, 1);
  ASSERT_TRUE(dealer.next(2));
  EXPECT_FALSE(dealer.next(0));
  EXPECT_FALSE(dealer.next(1));
  EXPECT_TRUE(dealer.next(2));
  EXPECT_EQ(dealer.epoch(), 2);
}

TEST(Dealer, AFinishedEpochIsNotGoneThroughAgain) {
  Dealer dealer(4, 4, 1);
  ASSERT_TRUE(dealer.next(0));
  dealer.complete();
  ASSERT_FALSE(dealer.next(0));
  EXPECT_EQ(dealer.epoch(), 0);
  dealer.finish_epoch(0);
  EXPECT_EQ(dealer.epoch(), 1);
  ASSERT_TRUE(dealer.next(1));
  dealer.finish_epoch(0);  // said again by one that is behind
  EXPECT_EQ(dealer.epoch(), 1);
  EXPECT_TRUE(dealer.in_step());
}

// A world of 4 with 8 rows in a step is lost in its first step; who is left of it, and the world
// after it by the ranks' numbers before.
struct Loss {
  const char* name;
  std::vector<int> was;
  Rows lost_places;  // of the step
};

class Lost : public testing::TestWithParam<Loss> {};

TEST_P(Lost, TheOldWorldDealsTheStepAndTheRestComesAtTheEnd) {
  const Loss& loss = GetParam();
  auto world = make_world(4, 20, 8);
  const auto dealt = deal(world, 0);
  auto alone = make_world(1, 20, 8);
  const Rows order = [&] {
    Rows all;
    for (auto rows = alone[0].next(0); rows; rows = alone[0].next(0)) {
      all.insert(all.end(), rows->begin(), rows->end());
      alone[0].complete();
    }
    return all;
  }();
  std::vector<Dealer> next;
  for (size_t rank = 0; rank < loss.was.size(); ++rank) {
    // One that joins gets the state of one that was there.
    const int was = loss.was[rank];
    Dealer dealer = world[static_cast<size_t>(was >= 0 ? was : loss.was[0])];
    dealer.change_world(static_cast<int>(rank), loss.was, true);
    next.push_back(dealer);
    EXPECT_EQ(*next.back().next(0), was >= 0 ? dealt[static_cast<size_t>(was)] : Rows{});
  }
  complete(next);
  for (const Dealer& dealer : next) {
    EXPECT_EQ(dealer.state().position, 8);
    Rows expected;
    for (const int64_t place : loss.lost_places)
      expected.push_back(order[static_cast<size_t>(place)]);
    EXPECT_EQ(dealer.state().left_over, expected);
  }
  // From here on the new world deals, in steps of 8; the 20 rows and those left over.
  std::vector<size_t> sizes;
  for (const Rows& rows : steps_of_epoch(next, 0)) sizes.push_back(rows.size());
  const size_t rest = 12 + loss.lost_places.size();
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), rest);
  EXPECT_EQ(sizes[0], 8U);
}

INSTANTIATE_TEST_SUITE_P(Dealer, Lost,
                         testing::Values(Loss{"last", {0, 1, 2}, {3, 7}},
                                         Loss{"first", {1, 2, 3}, {0, 4}},
                                         Loss{"all_but_one", {2}, {0, 1, 3, 4, 5, 7}},
                                         Loss{"reordered", {3, 0}, {1, 2, 5, 6}},
                                         Loss{"replaced", {0, 1, -1, 3}, {2, 6}},
                                         Loss{"grown", {0, 1, 2, 3, -1}, {}}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Dealer, TwoLossesInOneStep) {
  auto world = make_world(4, 40, 8);
  const auto dealt = deal(world, 0);
  Dealer one = world[2];
  one.change_world(1, {0, 2, 3, -1}, true);
  one.change_world(0, {1, 3}, true);
  EXPECT_EQ(one.next(0), dealt[2]);
  one.complete();
  EXPECT_EQ(sorted(one.state().left_over), together({dealt[0], dealt[1], dealt[3]}));
}

TEST(Dealer, ARankBetweenTwoStepsDealsAsTheOneThatWasWithin) {
  auto world = make_world(3, 10, 6);
  deal(world, 0);
  complete(world);
  // The last step of the epoch, and the first of the next one.
  for (const int64_t epoch : {0, 1}) {
    Dealer within = world[0];
    Dealer between = world[1];
    const auto rows = within.next(epoch);
    within.change_world(0, {0, 1}, true);
    between.change_world(1, {0, 1}, true);
    EXPECT_EQ(within.next(epoch), rows);
    EXPECT_EQ(between.next(epoch), world[1].next(epoch));
    EXPECT_EQ(between.state().left_over, within.state().left_over);
    EXPECT_EQ(between.state().dealt_as, within.state().dealt_as);
    EXPECT_EQ(between.epoch(), epoch);
    EXPECT_EQ(between.next(0).has_value(), epoch == 0);
    if (epoch > 0) break;
    deal(world, 0);
    complete(world);
  }
}

TEST(Dealer, WithNobodyInAStepTheNewWorldDeals) {
  auto world = make_world(4, 40, 8);
  deal(world, 0);
  complete(world);
  Dealer one = world[3];
  one.change_world(0, {3}, false);
  EXPECT_EQ(one.next(0)->size(), 8U);
  one.complete();
  EXPECT_TRUE(one.state().left_over.empty());
}

TEST(Dealer, AnyWorldGoesOnFromAState) {
  auto world = make_world(4, 100, 8);
  std::vector<Rows> seen;
  for (int step = 0; step < 3; ++step) {
    seen.push_back(together(deal(world, 0)));
    complete(world);
  }
  const auto dealt = deal(world, 0);
  for (int rank = 0; rank < 3; ++rank)
    world[static_cast<size_t>(rank)].change_world(rank, {0, 1, 2}, true);
  world.pop_back();
  seen.push_back(together({dealt[0], dealt[1], dealt[2]}));
  complete(world);

  auto other = make_world(2, 100, 16, 99);
  ASSERT_FALSE(deal(world, 0).empty());  // a step that is begun is no part of a checkpoint
  for (Dealer& dealer : other) dealer.load(world[0].state_to_save());
  const auto steps = steps_of_epoch(other, 0);
  EXPECT_EQ(steps[0].size(), 16U);
  seen.insert(seen.end(), steps.begin(), steps.end());
  EXPECT_EQ(together(seen), numbers(100));
}

TEST(Dealer, AStateThatDoesNotFitIsRefused) {
  Dealer dealer(10, 4, 1);
  const auto refused = [&](const std::function<void(Dealer::State&)>& spoil) {
    Dealer::State state = dealer.state();
    spoil(state);
    EXPECT_THROW(dealer.load(state), Error);
  };
  refused([](auto& state) { state.rows = 11; });
  refused([](auto& state) { state.position = 11; });
  refused([](auto& state) { state.position = -1; });
  refused([](auto& state) { state.epoch = -1; });
  refused([](auto& state) { state.left_over = {10}; });
  refused([](auto& state) { state.dealt_to = 2; });
  refused([](auto& state) { state.dealt_to = 1, state.dealt_as = {1}; });
}

// Worlds of random sizes that are lost, shrink, grow and start again from a checkpoint at random
// moments. It does what DataParallel does with ranks that differ by one step.
class Simulation {
 public:
  Simulation(uint64_t seed, int64_t rows, int64_t batch)
      : random_(seed), rows_(rows), ranks_(make_ranks(pick(1, 6), rows, batch)), batch_(batch) {}

  void run(int64_t epochs) {
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      Rows seen;
      while (step(epoch, seen)) {
      }
      ASSERT_EQ(sorted(seen), numbers(rows_)) << "epoch " << epoch;
    }
  }
  int losses() const { return losses_; }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  static std::vector<Dealer> make_ranks(int size, int64_t rows, int64_t batch) {
    return make_world(size, rows, batch, 3);
  }

  void agree() {
    for (const Dealer& dealer : ranks_) {
      const Dealer::State& mine = dealer.state();
      const Dealer::State& first = ranks_[0].state();
      ASSERT_EQ(
          std::tie(mine.epoch, mine.position, mine.left_over, mine.dealt_to, mine.dealt_as),
          std::tie(first.epoch, first.position, first.left_over, first.dealt_to, first.dealt_as));
    }
  }

  // A random part of the ranks in a random order with some new ones, but one of `needed` at least.
  std::vector<int> next_members(const std::vector<int>& needed) {
    std::vector<int> was;
    const int keeper = needed[static_cast<size_t>(pick(0, int(needed.size()) - 1))];
    for (int rank = 0; rank < int(ranks_.size()); ++rank)
      if (rank == keeper || chance(70)) was.push_back(rank);
    for (int joining = chance(30) ? pick(1, 2) : 0; joining > 0; --joining) was.push_back(-1);
    std::shuffle(was.begin(), was.end(), random_);
    return was;
  }

  // `furthest`: by old rank, whether it has come furthest. The others get the state of one that
  // has.
  void change(const std::vector<int>& was, const std::vector<bool>& furthest, bool begun) {
    ++losses_;
    std::vector<Dealer> next;
    const Dealer* giver = nullptr;
    for (size_t rank = 0; rank < was.size(); ++rank) {
      next.push_back(was[rank] < 0 ? Dealer(rows_, batch_, 3) : ranks_[size_t(was[rank])]);
      const bool ahead = was[rank] >= 0 && furthest[size_t(was[rank])];
      next.back().change_world(int(rank), was, begun && ahead);
    }
    for (size_t rank = 0; rank < was.size() && giver == nullptr; ++rank)
      if (was[rank] >= 0 && furthest[size_t(was[rank])]) giver = &next[rank];
    for (size_t rank = 0; rank < was.size(); ++rank)
      if (was[rank] < 0 || !furthest[size_t(was[rank])]) next[rank].load(giver->state());
    ranks_ = std::move(next);
    agree();
  }

  bool step(int64_t epoch, Rows& seen) {
    if (chance(4)) {  // the whole job starts again, with the state of a checkpoint
      const Dealer::State saved = ranks_[0].state_to_save();
      ranks_ = make_ranks(pick(1, 6), rows_, batch_);
      for (Dealer& dealer : ranks_) dealer.load(saved);
    }
    if (chance(10)) {  // a change that all have agreed on
      std::vector<int> all = numbers_of_ranks();
      change(next_members(all), std::vector<bool>(ranks_.size(), true), false);
    }
    if (chance(10)) {  // lost when only some had been dealt the step
      std::vector<int> within;
      for (int rank = 0; rank < int(ranks_.size()); ++rank)
        if (chance(50) && ranks_[size_t(rank)].next(epoch)) within.push_back(rank);
      if (!within.empty())
        change(next_members(within), std::vector<bool>(ranks_.size(), true), true);
    }
    if (deal(ranks_, epoch).empty()) return false;
    while (chance(20))  // lost in the reduction, on all ranks
      change(next_members(numbers_of_ranks()), std::vector<bool>(ranks_.size(), true), true);

    // What counts as learned is what the ranks that complete the step have of it.
    const auto dealt = deal(ranks_, epoch);
    const Rows learned = together(dealt);
    if (chance(20)) {  // lost when the reduction was done on some only: they give the state
      std::vector<int> done;
      std::vector<bool> furthest(ranks_.size());
      for (int rank = 0; rank < int(ranks_.size()); ++rank)
        if (chance(50)) {
          ranks_[size_t(rank)].complete();
          furthest[size_t(rank)] = true;
          done.push_back(rank);
        }
      if (done.empty()) return true;
      bool begun = false;  // and some of these may have begun the next step already
      const std::vector<int> was = next_members(done);
      for (const int rank : was)
        if (rank >= 0 && furthest[size_t(rank)] && chance(50))
          begun = ranks_[size_t(rank)].next(epoch).has_value() || begun;
      change(was, furthest, begun);
    } else {
      complete(ranks_);
    }
    seen.insert(seen.end(), learned.begin(), learned.end());
    agree();
    return true;
  }

  std::vector<int> numbers_of_ranks() const {
    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  std::mt19937_64 random_;
  int64_t rows_;
  std::vector<Dealer> ranks_;
  int64_t batch_;
  int losses_ = 0;
};

TEST(Dealer, EveryRowOnceInAnEpochWhateverHappensToTheWorld) {
  int losses = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int64_t rows[] = {1, 5, 37, 200};
    Simulation simulation(seed, rows[seed % 4], seed % 3 == 0 ? 3 : 8);
    simulation.run(4);
    if (testing::Test::HasFailure()) return;
    losses += simulation.losses();
  }
  EXPECT_GT(losses, 5000);  // it did try
}

TEST(Dealer, TheOrderComesFromSeedAndEpochAlone) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    return *Dealer(500, 500, seed).next(epoch);
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 1), order(1, 0));
  EXPECT_NE(order(1, 1), order(2, 0));
  Dealer dealer(500, 500, 1);
  dealer.finish_epoch(0);
  EXPECT_EQ(*dealer.next(1), order(1, 1));
}

// Checkpoints of other versions and machines rest on this stream: it must never change.
TEST(Dealer, TheStreamIsFrozen) {
  EXPECT_EQ(*Dealer(8, 8, 42).next(0), (Rows{3, 6, 0, 7, 1, 2, 5, 4}));
}

TEST(Dealer, RowsAreSpreadEvenly) {
  // How often row 0 comes in the first half, over 400 epochs: binomial, six sigma is 60.
  int first_half = 0;
  Dealer dealer(100, 50, 11);
  for (int64_t epoch = 0; epoch < 400; ++epoch) {
    const auto rows = *dealer.next(epoch);
    first_half += std::count(rows.begin(), rows.end(), 0) > 0 ? 1 : 0;
  }
  EXPECT_NEAR(first_half, 200, 60);
}

TEST(Dealer, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Dealer(-1, 1, 0), Error);
  EXPECT_THROW(Dealer(1, 0, 0), Error);
  Dealer dealer(10, 4, 0);
  EXPECT_THROW(dealer.set_world(2, 2), Error);
  EXPECT_THROW(dealer.set_world(0, 0), Error);
  EXPECT_THROW(dealer.complete(), Error);
  ASSERT_TRUE(dealer.next(0));
  EXPECT_THROW(dealer.set_world(0, 2), Error);
}

TEST(ContiguousShare, CoversAllRowsOnce) {
  for (const int64_t rows : {0, 1, 3, 360, 361})
    for (const int world : {1, 2, 3, 4, 7}) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Share share = contiguous_share(rows, rank, world);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(share.last - share.first, rows / world + 1);
        next = share.last;
      }
      EXPECT_EQ(next, rows);
    }
}

}  // namespace
}  // namespace af::train
