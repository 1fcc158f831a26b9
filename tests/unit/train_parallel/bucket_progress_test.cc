// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_progress.h"

#include <gtest/gtest.h>

namespace af::train {
namespace {

using Buckets = std::vector<std::size_t>;

// Buckets {4, 3}, {2}, {1}, {0}.
BucketProgress make_progress() {
  std::vector<BucketPlan> plan(4);
  plan[0].parameters = {4, 3};
  plan[1].parameters = {2};
  plan[2].parameters = {1};
  plan[3].parameters = {0};
  return BucketProgress(plan, 5);
}

Buckets mark(BucketProgress& progress, std::size_t parameter) {
  EXPECT_TRUE(progress.mark(parameter));
  Buckets taken;
  while (const auto bucket = progress.take_complete()) taken.push_back(*bucket);
  return taken;
}

Buckets take_rest(BucketProgress& progress) {
  Buckets taken;
  while (const auto bucket = progress.take_next()) taken.push_back(*bucket);
  return taken;
}

TEST(BucketProgress, ABucketGoesWhenAllOfItHasCome) {
  BucketProgress progress = make_progress();
  EXPECT_EQ(mark(progress, 4), Buckets{});
  EXPECT_EQ(mark(progress, 3), (Buckets{0}));
  EXPECT_EQ(mark(progress, 2), (Buckets{1}));
  EXPECT_EQ(mark(progress, 1), (Buckets{2}));
  EXPECT_EQ(mark(progress, 0), Buckets{}) << "the last one waits";
  EXPECT_EQ(progress.gone(), 3U);
  EXPECT_EQ(take_rest(progress), (Buckets{3}));
}

TEST(BucketProgress, NoneGoesBeforeThoseInFrontOfIt) {
  BucketProgress progress = make_progress();
  EXPECT_EQ(mark(progress, 0), Buckets{});
  EXPECT_EQ(mark(progress, 1), Buckets{});
  EXPECT_EQ(mark(progress, 3), Buckets{});
  EXPECT_EQ(mark(progress, 2), Buckets{});
  EXPECT_EQ(mark(progress, 4), (Buckets{0, 1, 2}));
}

TEST(BucketProgress, WhateverHasComeTheRestFollowsInOrder) {
  BucketProgress progress = make_progress();
  mark(progress, 4);
  mark(progress, 3);
  mark(progress, 1);
  EXPECT_EQ(take_rest(progress), (Buckets{1, 2, 3}));
  EXPECT_EQ(take_rest(progress), Buckets{});
}

TEST(BucketProgress, ASecondTimeIsNoticedAndANewStepBeginsAnew) {
  BucketProgress progress = make_progress();
  mark(progress, 2);
  EXPECT_FALSE(progress.mark(2));
  mark(progress, 4);
  EXPECT_EQ(mark(progress, 3), (Buckets{0, 1}));
  progress.begin();
  EXPECT_EQ(progress.gone(), 0U);
  EXPECT_EQ(mark(progress, 2), Buckets{});
  EXPECT_EQ(mark(progress, 4), Buckets{});
  EXPECT_EQ(mark(progress, 3), (Buckets{0, 1}));
}

TEST(BucketProgress, OneBucketNeverGoesOnItsOwn) {
  std::vector<BucketPlan> plan(1);
  plan[0].parameters = {0};
  BucketProgress progress(plan, 1);
  EXPECT_EQ(mark(progress, 0), Buckets{});
  EXPECT_EQ(take_rest(progress), (Buckets{0}));
}

TEST(BucketProgress, NoBuckets) {
  BucketProgress progress;
  EXPECT_FALSE(progress.take_complete());
  EXPECT_FALSE(progress.take_next());
}

}  // namespace
}  // namespace af::train
