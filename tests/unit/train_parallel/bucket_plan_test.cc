// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace af::train {
namespace {

using Indices = std::vector<std::size_t>;

// In reverse order, every bucket with the same limit.
std::vector<BucketPlan> plan(const std::vector<ParameterShape>& shapes, std::size_t limit) {
  return plan_buckets(shapes, reverse_order(shapes.size()), {limit, limit});
}

TEST(PlanBuckets, NoParametersNoBuckets) {
  EXPECT_TRUE(plan({}, 100).empty());
}

// The numbers of parameters of each bucket.
std::vector<std::size_t> sizes_of(const std::vector<BucketPlan>& plan) {
  std::vector<std::size_t> sizes;
  for (const BucketPlan& one : plan) sizes.push_back(one.parameters.size());
  return sizes;
}

// So that a link as fast as backward is busy from soon after its begin until soon after its end.
TEST(PlanBuckets, TheFirstAndTheLastAreSmallAndNoneIsMoreThanASixteenth) {
  const std::vector<ParameterShape> shapes(100, {1 << 18});  // of 1 MiB
  EXPECT_EQ(sizes_of(plan_buckets(shapes, reverse_order(100), {})),
            (std::vector<std::size_t>{1, 2, 4, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 5, 2, 1, 1}));
}

TEST(PlanBuckets, OfALargeModelTheyHaveTheLargestSize) {
  const std::vector<ParameterShape> shapes(490, {1 << 18});  // of 1 MiB
  EXPECT_EQ(sizes_of(plan_buckets(shapes, reverse_order(490), {})),
            (std::vector<std::size_t>{1,  2,  4,  8,  16, 25, 25, 25, 25, 25, 25, 25, 25, 25,
                                      25, 25, 25, 25, 25, 25, 25, 25, 17, 9,  4,  2,  1,  1}));
}

TEST(PlanBuckets, EachTypesBucketsGrowAndShrinkOnTheirOwn) {
  std::vector<ParameterShape> shapes(80, {16});  // of 64 bytes
  for (std::size_t i = 0; i < 80; i += 2) shapes[i] = {8, 7, 0, 8};
  std::vector<BucketPlan> odd, even;
  for (const BucketPlan& one : plan_buckets(shapes, reverse_order(80), {64, 1000}))
    (one.parameters[0] % 2 == 0 ? even : odd).push_back(one);
  const std::vector<std::size_t> wanted = {1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1, 1};
  EXPECT_EQ(sizes_of(even), wanted);
  EXPECT_EQ(sizes_of(odd), wanted);
}

TEST(PlanBuckets, NoneIsLargerThanTheLargest) {
  const std::vector<ParameterShape> shapes(6, {16});
  for (const BucketPlan& one : plan_buckets(shapes, reverse_order(6), {1 << 20, 128}))
    EXPECT_EQ(one.parameters.size(), 2U);
}

TEST(PlanBuckets, TheOrderIsTheCallers) {
  const auto planned = plan_buckets({{16}, {16}, {16}, {16}}, {2, 0, 3, 1}, {128, 128});
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(planned[0].parameters, (Indices{2, 0}));
  EXPECT_EQ(planned[1].parameters, (Indices{3, 1}));
  EXPECT_EQ(planned[1].offsets, (std::vector<int64_t>{0, 16}));
}

TEST(PlanBuckets, ReverseOrderClosedAtTheLimit) {
  const auto planned = plan({{32}, {32}, {64}, {16}}, 256);
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(planned[0].parameters, (Indices{3, 2}));  // 16 + 64 floats: 320 bytes, past 256
  EXPECT_EQ(planned[0].offsets, (std::vector<int64_t>{0, 16}));
  EXPECT_EQ(planned[0].elements, 80);
  EXPECT_EQ(planned[1].parameters, (Indices{1, 0}));
}

TEST(PlanBuckets, AParameterLargerThanTheLimitIsABucket) {
  const auto planned = plan({{10}, {1000000}, {10}}, 64);
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(planned[0].parameters, (Indices{2, 1}));
  EXPECT_EQ(planned[1].parameters, (Indices{0}));
}

TEST(SameBuckets, TheOrderWithinABucketDoesNotCount) {
  const std::vector<ParameterShape> shapes(4, {16});
  const auto of = [&](const Indices& order) { return plan_buckets(shapes, order, {128, 128}); };
  EXPECT_TRUE(same_buckets(of({0, 1, 2, 3}), of({1, 0, 3, 2})));
  EXPECT_FALSE(same_buckets(of({0, 1, 2, 3}), of({2, 3, 0, 1}))) << "that of buckets does";
  EXPECT_FALSE(same_buckets(of({0, 1, 2, 3}), of({0, 2, 1, 3})));
  EXPECT_FALSE(same_buckets(of({0, 1, 2, 3}), {}));
}

TEST(PlanBuckets, ParametersStartAt64Bytes) {
  const auto planned = plan({{1}, {3}, {17}}, 1 << 20);
  ASSERT_EQ(planned.size(), 1U);
  EXPECT_EQ(planned[0].offsets, (std::vector<int64_t>{0, 32, 48}));
  EXPECT_EQ(planned[0].elements, 49);
}

TEST(PlanBuckets, TypesAndDevicesDoNotMix) {
  const auto planned = plan({{8, 6, -1, 4}, {8, 7, -1, 8}, {8, 6, 0, 4}, {8, 6, -1, 4}}, 1 << 20);
  ASSERT_EQ(planned.size(), 3U);
  EXPECT_EQ(planned[0].parameters, (Indices{3, 0}));
  EXPECT_EQ(planned[1].parameters, (Indices{2}));
  EXPECT_EQ(planned[2].parameters, (Indices{1}));
}

TEST(PlanBuckets, EveryParameterOnceWithoutOverlap) {
  std::vector<ParameterShape> shapes;
  shapes.reserve(50);
  for (int i = 0; i < 50; ++i) shapes.push_back({1 + (i * 37) % 101});
  std::set<std::size_t> seen;
  for (const BucketPlan& bucket : plan(shapes, 1000)) {
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
