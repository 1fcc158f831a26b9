// SPDX-License-Identifier: Apache-2.0
#include "collectives/roll_call.h"

#include <gtest/gtest.h>

namespace af {
namespace {

TEST(RollCall, NamesTheSilentAndTheLate) {
  RollCall roll(5, 1, 7);
  EXPECT_EQ(roll.missing(), (std::vector<int>{0, 2, 3, 4}));
  roll.heard(0, 7);
  roll.heard(2, 6);   // behind
  roll.heard(4, 9);   // has done it and gone on
  roll.heard(-1, 7);  // no rank
  roll.heard(99, 7);
  EXPECT_EQ(roll.missing(), (std::vector<int>{2, 3}));
  EXPECT_FALSE(roll.complete());
  roll.heard(2, 7);
  roll.heard(2, 6);  // an older answer that was overtaken
  roll.heard(3, 8);
  EXPECT_TRUE(roll.complete());
}

TEST(RankList, ReadsAsASentence) {
  EXPECT_EQ(rank_list({}), "no rank");
  EXPECT_EQ(rank_list({2}), "rank 2");
  EXPECT_EQ(rank_list({1, 3}), "ranks 1 and 3");
  EXPECT_EQ(rank_list({1, 3, 4}), "ranks 1, 3 and 4");
}

TEST(RanksText, GoesThereAndBack) {
  for (const std::vector<int>& ranks : {std::vector<int>{}, {0}, {1, 3, 40}}) {
    EXPECT_EQ(ranks_from_text(ranks_to_text(ranks)), ranks);
  }
  EXPECT_EQ(ranks_from_text("1,x,,3z,4"), (std::vector<int>{1, 4}));
}

TEST(SecondsText, IsShort) {
  EXPECT_EQ(seconds_text(std::chrono::milliseconds(3000)), "3 s");
  EXPECT_EQ(seconds_text(std::chrono::milliseconds(250)), "0.25 s");
}

}  // namespace
}  // namespace af
