// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace af::train {
namespace {

constexpr int kF32 = 6;
constexpr int kF64 = 7;

TEST(FsdpLayout, AUnitsParametersLieBehindEachOtherAndArePadded) {
  const ShardLayout layout = plan_shards({{0, 10, kF32}, {0, 100, kF32}, {0, 1, kF32}}, 1, 3);
  ASSERT_EQ(layout.units[0].groups.size(), 1u);
  const GroupLayout& group = layout.units[0].groups[0];
  EXPECT_EQ(group.offsets, (std::vector<int64_t>{0, 16, 128}));
  EXPECT_EQ(group.count, 48);  // of 129 elements: 43, to a multiple of 16
  EXPECT_EQ(layout.units[0].bytes, 3u * 48 * 4);
  EXPECT_EQ(layout.shard_bytes, 48u * 4);
}

TEST(FsdpLayout, TypesAndFrozenParametersAreApart) {
  const ShardLayout layout = plan_shards({{0, 64, kF32, 4, true},
                                          {0, 64, kF64, 8, true},
                                          {0, 64, kF32, 4, false},
                                          {0, 64, kF32, 4, true}},
                                         1, 2);
  const auto& groups = layout.units[0].groups;
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].parameters, (std::vector<std::size_t>{0, 3}));
  EXPECT_EQ(groups[1].parameters, (std::vector<std::size_t>{1}));
  EXPECT_FALSE(groups[2].trained);
  std::size_t end = 0;
  for (const GroupLayout& group : groups) {
    EXPECT_EQ(group.unit_offset, end);
    EXPECT_EQ(group.unit_offset % 64, 0u);
    end += static_cast<std::size_t>(group.count) * group.element_bytes * 2;
  }
  EXPECT_EQ(layout.units[0].bytes, end);
}

TEST(FsdpLayout, NoTwoGroupsHaveShardsOfTheSameSize) {
  std::vector<ShardedParameter> parameters;
  for (std::size_t unit = 0; unit < 50; ++unit) parameters.push_back({unit, 256, kF32});
  const ShardLayout layout = plan_shards(parameters, 50, 2);
  std::set<int64_t> counts;
  for (const UnitLayout& unit : layout.units) counts.insert(unit.groups[0].count);
  EXPECT_EQ(counts.size(), 50u);
  EXPECT_EQ(*counts.begin(), 128);
  EXPECT_EQ(*counts.rbegin(), 128 + 49 * 16);
}

TEST(FsdpLayout, UnitsWithoutParametersTakeNothing) {
  const ShardLayout layout = plan_shards({{1, 5, kF32}}, 3, 4);
  EXPECT_EQ(layout.units[0].bytes, 0u);
  EXPECT_EQ(layout.units[2].bytes, 0u);
  EXPECT_EQ(layout.units[1].groups[0].count, 16);
}

TEST(FsdpLayout, AnEmptyParameterHasAPlace) {
  const ShardLayout layout = plan_shards({{0, 0, kF32}}, 1, 2);
  EXPECT_EQ(layout.units[0].groups[0].count, 16);
}

TEST(FsdpLayout, SharesOfAParameterCoverItOnce) {
  for (const int ranks : {1, 2, 3, 7}) {
    const ShardLayout layout = plan_shards({{0, 33, kF32}, {0, 300, kF32}}, 1, ranks);
    const GroupLayout& group = layout.units[0].groups[0];
    int64_t covered = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Overlap part = overlap_of(group.offsets[1], 300, group.count, rank);
      if (part.elements == 0) continue;
      EXPECT_EQ(part.in_parameter, covered);
      EXPECT_EQ(rank * group.count + part.in_shard, group.offsets[1] + part.in_parameter);
      covered += part.elements;
    }
    EXPECT_EQ(covered, 300) << ranks;
  }
}

}  // namespace
}  // namespace af::train
