// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/step_sums.h"

#include <gtest/gtest.h>

#include <limits>

namespace af::train {
namespace {

struct Rank {
  StepPart part;
  double factor = 1;  // of its gradients
};

// As the ranks' buckets add it up, in f32.
StepSums sum(const std::vector<Rank>& ranks) {
  std::vector<float> sums(to_numbers(ranks.front().part, 1).size());
  for (const Rank& rank : ranks) {
    const auto numbers = to_numbers(rank.part, rank.factor);
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] += static_cast<float>(numbers[i]) * static_cast<float>(rank.factor);
  }
  return from_numbers({sums.begin(), sums.end()});
}

StepPart part_of(double samples, double loss) {
  StepPart part;
  part.samples = samples;
  part.loss = loss;
  return part;
}

TEST(StepSums, SamplesAreExactAndLossesWeighted) {
  const StepSums all = sum({{part_of(5, 0.5), 5}, {part_of(0, 7), 1}, {part_of(11, 2), 11}});
  EXPECT_EQ(all.samples, 16);
  EXPECT_FLOAT_EQ(static_cast<float>(all.loss), 5 * 0.5F + 22);
  EXPECT_FALSE(all.change || all.save || all.rebuild);
  EXPECT_EQ(all.ranks_missing, 0);
}

TEST(StepSums, SamplesAreExactWhateverTheFactor) {
  for (const double samples : {1.0, 3.0, 29.0, 511.0, 65537.0, 5592405.0})
    for (const double reference : {1.0, 8.0, 4096.0, 8388608.0})
      EXPECT_EQ(sum({{part_of(samples, 0), samples / reference},
                     {part_of(2 * samples + 1, 0), (2 * samples + 1) / reference}})
                    .samples,
                3 * samples + 1)
          << samples << " " << reference;
  // Two passes of 5 and 3 samples: gradients count as those of 5.
  EXPECT_EQ(sum({{part_of(8, 0), 5}, {part_of(8, 0), 3}}).samples, 16);
}

TEST(StepSums, ALossThatIsNoNumberStaysWhereThereAreNoSamples) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(sum({{part_of(2, 3), 2}, {part_of(0, nan), 1}}).loss, 6);
}

TEST(StepSums, AnyRanksWishIsAllRanks) {
  Rank change{part_of(3, 0), 3};
  change.part.change = true;
  Rank save{part_of(0, 0), 1};
  save.part.save = true;
  Rank rebuild{part_of(70, 0), 70};
  rebuild.part.rebuild = true;
  EXPECT_TRUE(sum({change, save}).change);
  EXPECT_TRUE(sum({change, save}).save);
  EXPECT_FALSE(sum({change, save}).rebuild);
  EXPECT_TRUE(sum({change, rebuild}).rebuild);
}

TEST(StepSums, WhatIsMissingIsToldWhereOneRankMissesIt) {
  Rank one{part_of(7, 0), 7};
  one.part.missing = 12345;
  const Rank other{part_of(9, 0), 9};
  EXPECT_EQ(sum({one, other}).ranks_missing, 1);
  EXPECT_EQ(sum({one, other}).missing, std::optional<std::size_t>(12345));
  EXPECT_EQ(sum({one, other, one}).ranks_missing, 2);
  EXPECT_FALSE(sum({one, other, one}).missing);
}

TEST(StepSums, UsedByAnyRank) {
  Rank one{part_of(7, 0), 7};
  one.part.used = {1, 0, 0};
  Rank other{part_of(9, 0), 9};
  other.part.used = {1, 0, 1};
  EXPECT_EQ(sum({one, other}).used, (std::vector<char>{1, 0, 1}));
}

TEST(ReferenceFor, IsThePowerOfTwoBelow) {
  for (const auto& [samples, reference] : std::vector<std::pair<double, double>>{
           {0, 1}, {1, 1}, {3, 2}, {4, 4}, {511, 256}, {512, 512}, {513, 512}})
    EXPECT_EQ(reference_for(samples), reference) << samples;
}

}  // namespace
}  // namespace af::train
