// SPDX-License-Identifier: Apache-2.0
#include "launcher/world_outcome.h"

#include <gtest/gtest.h>

#include <csignal>

#include "launcher/exit_codes.h"

namespace af {
namespace {

RankEnd code(int rank, int value) {
  return {.rank = rank, .host = "n1", .code = value};
}
RankEnd killed(int rank, int signal) {
  return {.rank = rank, .host = "n1", .signal = signal};
}

TEST(WorldOutcome, AllWellIs0) {
  WorldOutcome world(2);
  EXPECT_FALSE(world.rank_ended(code(1, 0)));
  EXPECT_FALSE(world.over());
  EXPECT_FALSE(world.rank_ended(code(0, 0)));
  EXPECT_TRUE(world.over());
  EXPECT_EQ(world.exit_code(), 0);
  EXPECT_EQ(world.reason(), "all ranks have finished");
}

TEST(WorldOutcome, TheFirstFailureDecides) {
  WorldOutcome world(3);
  EXPECT_FALSE(world.rank_ended(code(2, 0)));
  EXPECT_TRUE(world.rank_ended(code(1, 7)));
  EXPECT_FALSE(world.rank_ended(killed(0, SIGTERM)));  // we did that
  EXPECT_EQ(world.exit_code(), 7);
  EXPECT_EQ(world.reason(), "rank 1 on n1 failed: exit code 7");
}

TEST(WorldOutcome, ASignalCountsAsAShellCountsIt) {
  WorldOutcome world(1);
  world.rank_ended(killed(0, SIGSEGV));
  EXPECT_EQ(world.exit_code(), 139);
  EXPECT_EQ(world.reason(), "rank 0 on n1 failed: signal SEGV (11)");
}

TEST(WorldOutcome, ToldToStopNobodyIsEndedByUs) {
  WorldOutcome world(2);
  world.told_to_stop(SIGTERM);
  EXPECT_FALSE(world.rank_ended(killed(0, SIGTERM)));  // rank 1 may still be saving
  EXPECT_FALSE(world.ending());
  EXPECT_FALSE(world.rank_ended(code(1, 0)));
  EXPECT_EQ(world.exit_code(), 143);
  WorldOutcome saved(1);
  saved.told_to_stop(SIGTERM);
  saved.rank_ended(code(0, 0));
  EXPECT_EQ(saved.exit_code(), 0);
  EXPECT_EQ(saved.reason(), "stopped by signal TERM");
}

TEST(WorldOutcome, LostPartsEndTheWorld) {
  WorldOutcome world(3);
  EXPECT_TRUE(world.broken("lost the agent of task 1", kExitLauncherLost, {1}));
  EXPECT_FALSE(world.broken("lost the agent of task 2", kExitLauncherLost, {2}));
  EXPECT_FALSE(world.rank_ended(killed(0, SIGTERM)));
  EXPECT_TRUE(world.over());
  EXPECT_EQ(world.exit_code(), kExitLauncherLost);
  EXPECT_EQ(world.reason(), "lost the agent of task 1");
}

TEST(WorldOutcome, WhatFollowsAFailureIsNoNews) {
  WorldOutcome world(2);
  EXPECT_TRUE(world.rank_ended(code(0, 5)));
  EXPECT_FALSE(world.broken("lost the agent of task 1", kExitLauncherLost, {1}));
  EXPECT_TRUE(world.over());
  EXPECT_EQ(world.exit_code(), 5);
}

}  // namespace
}  // namespace af
