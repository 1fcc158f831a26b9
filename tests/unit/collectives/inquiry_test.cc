// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/inquiry.h"

#include <gtest/gtest.h>

namespace af::local {
namespace {

using Answers = std::map<int, std::vector<int>>;
using Ranks = std::vector<int>;

TEST(Culprits, TableOfAnswers) {
  // Rank 1 hangs; rank 2 waits for it as rank 0 does.
  EXPECT_EQ(culprits(0, {1, 2}, {{2, {1}}}), (Ranks{1}));
  // Rank 1 is alive and computes something else.
  EXPECT_EQ(culprits(0, {1, 2}, {{1, {}}, {2, {1}}}), (Ranks{1}));
  // Rank 2 waits for rank 3 of its node, whom rank 0 has no connection with.
  EXPECT_EQ(culprits(0, {2}, {{2, {3}}}), (Ranks{3}));
  // Two hang.
  EXPECT_EQ(culprits(0, {3, 1}, Answers{}), (Ranks{1, 3}));
  // A circle: everybody waits for everybody.
  EXPECT_EQ(culprits(0, {1, 2}, {{1, {0, 2}}, {2, {0, 1}}}), (Ranks{1, 2}));
}

}  // namespace
}  // namespace af::local
