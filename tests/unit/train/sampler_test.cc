// SPDX-License-Identifier: Apache-2.0
#include "af/train/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "common/error.h"

namespace af::train {
namespace {

std::vector<int64_t> rows_of_step(const Sampler& sampler, int64_t step, int world) {
  std::vector<int64_t> all;
  for (int rank = 0; rank < world; ++rank) {
    const auto mine = sampler.batch(step, rank, world);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int64_t> rows_of_epoch(const Sampler& sampler, int world) {
  std::vector<int64_t> all;
  for (int64_t step = 0; step < sampler.steps(); ++step) {
    const auto rows = rows_of_step(sampler, step, world);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

class AnyShape : public testing::TestWithParam<std::tuple<int64_t, int64_t, int>> {};

TEST_P(AnyShape, EveryRowOnceInAnEpoch) {
  const auto [rows, batch, world] = GetParam();
  Sampler sampler(rows, batch, 7);
  sampler.set_epoch(3);
  std::vector<int64_t> expected(static_cast<size_t>(rows));
  std::iota(expected.begin(), expected.end(), int64_t{0});
  EXPECT_EQ(rows_of_epoch(sampler, world), expected);
}

TEST_P(AnyShape, SharesOfAStepDifferByOneRowAtMost) {
  const auto [rows, batch, world] = GetParam();
  const Sampler sampler(rows, batch, 7);
  for (int64_t step = 0; step < sampler.steps(); ++step) {
    std::set<size_t> sizes;
    for (int rank = 0; rank < world; ++rank) sizes.insert(sampler.batch(step, rank, world).size());
    EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1U) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Sampler, AnyShape,
                         testing::Combine(testing::Values<int64_t>(0, 1, 5, 64, 1437),
                                          testing::Values<int64_t>(1, 7, 64),
                                          testing::Values(1, 2, 3, 4, 7)));

TEST(Sampler, AStepHasTheSameRowsInEveryWorld) {
  Sampler sampler(1437, 64, 1);
  sampler.set_epoch(2);
  for (int64_t step = 0; step < sampler.steps(); ++step)
    for (const int world : {2, 3, 4, 5})
      ASSERT_EQ(rows_of_step(sampler, step, world), rows_of_step(sampler, step, 1));
}

TEST(Sampler, AWorldThatChangesInMidEpochRepeatsAndLosesNothing) {
  const Sampler sampler(1000, 64, 5);
  std::vector<int64_t> seen;
  for (int64_t step = 0; step < sampler.steps(); ++step) {
    const auto rows = rows_of_step(sampler, step, step < 4 ? 4 : (step < 9 ? 1 : 3));
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, rows_of_epoch(sampler, 1));
}

TEST(Sampler, TheOrderComesFromSeedAndEpochAlone) {
  Sampler one(500, 500, 1);
  Sampler same(500, 500, 1);
  Sampler other(500, 500, 2);
  EXPECT_EQ(one.batch(0, 0, 1), same.batch(0, 0, 1));
  EXPECT_NE(one.batch(0, 0, 1), other.batch(0, 0, 1));
  const auto epoch_0 = one.batch(0, 0, 1);
  one.set_epoch(1);
  EXPECT_NE(one.batch(0, 0, 1), epoch_0);
  EXPECT_NE(one.batch(0, 0, 1), other.batch(0, 0, 1));
  one.set_epoch(0);
  EXPECT_EQ(one.batch(0, 0, 1), epoch_0);
}

// Checkpoints of other versions and machines rest on this stream: it must never change.
TEST(Sampler, TheStreamIsFrozen) {
  const Sampler sampler(8, 8, 42);
  EXPECT_EQ(sampler.batch(0, 0, 1), (std::vector<int64_t>{3, 6, 0, 7, 1, 2, 5, 4}));
}

TEST(Sampler, RowsAreSpreadEvenly) {
  // How often row 0 comes in the first half, over 400 epochs: binomial, six sigma is 60.
  Sampler sampler(100, 50, 11);
  int first_half = 0;
  for (int epoch = 0; epoch < 400; ++epoch) {
    sampler.set_epoch(epoch);
    const auto rows = sampler.batch(0, 0, 1);
    first_half += std::count(rows.begin(), rows.end(), 0) > 0 ? 1 : 0;
  }
  EXPECT_NEAR(first_half, 200, 60);
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Sampler(-1, 1, 0), Error);
  EXPECT_THROW(Sampler(1, 0, 0), Error);
  const Sampler sampler(10, 4, 0);
  EXPECT_THROW(sampler.batch(3, 0, 1), Error);
  EXPECT_THROW(sampler.batch(-1, 0, 1), Error);
  EXPECT_THROW(sampler.batch(0, 2, 2), Error);
  EXPECT_THROW(sampler.batch(0, 0, 0), Error);
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
