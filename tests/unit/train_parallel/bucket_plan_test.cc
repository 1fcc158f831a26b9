// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace af::train {
namespace {

using Indices = std::vector<std::size_t>;

TEST(PlanBuckets, NoParametersNoBuckets) {
  EXPECT_TRUE(plan_buckets({}, 100).empty());
}

TEST(PlanBuckets, ReverseOrderClosedAtTheLimit) {
  const auto plan = plan_buckets({{32}, {32}, {64}, {16}}, 256);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].parameters, (Indices{3, 2}));  // 16 + 64 floats: 320 bytes, past 256
  EXPECT_EQ(plan[0].offsets, (std::vector<int64_t>{0, 16}));
  EXPECT_EQ(plan[0].elements, 80);
  EXPECT_EQ(plan[1].parameters, (Indices{1, 0}));
}

TEST(PlanBuckets, AParameterLargerThanTheLimitIsABucket) {
  const auto plan = plan_buckets({{10}, {1000000}, {10}}, 64);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].parameters, (Indices{2, 1}));
  EXPECT_EQ(plan[1].parameters, (Indices{0}));
}

TEST(PlanBuckets, ParametersStartAt64Bytes) {
  const auto plan = plan_buckets({{1}, {3}, {17}}, 1 << 20);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].offsets, (std::vector<int64_t>{0, 32, 48}));
  EXPECT_EQ(plan[0].elements, 49);
}

TEST(PlanBuckets, TypesAndDevicesDoNotMix) {
  const auto plan =
      plan_buckets({{8, 6, -1, 4}, {8, 7, -1, 8}, {8, 6, 0, 4}, {8, 6, -1, 4}}, 1 << 20);
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0].parameters, (Indices{3, 0}));
  EXPECT_EQ(plan[1].parameters, (Indices{2}));
  EXPECT_EQ(plan[2].parameters, (Indices{1}));
}

TEST(PlanBuckets, EveryParameterOnceWithoutOverlap) {
  std::vector<ParameterShape> shapes;
  shapes.reserve(50);
  for (int i = 0; i < 50; ++i) shapes.push_back({1 + (i * 37) % 101});
  std::set<std::size_t> seen;
  for (const BucketPlan& bucket : plan_buckets(shapes, 1000)) {
    int64_t end = 0;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      EXPECT_TRUE(seen.insert(bucket.parameters[i]).second);
      EXPECT_GE(bucket.offsets[i], end);
      end = bucket.offsets[i] + shapes[bucket.parameters[i]].elements;
    }
    EXPECT_EQ(bucket.elements, end);
  }
  EXPECT_EQ(seen.size(), shapes.size());
}

}  // namespace
}  // namespace af::train
