// SPDX-License-Identifier: Apache-2.0
#include "launcher/elasticity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <vector>

namespace af {
namespace {

struct GrowthCase {
  const char* name;
  GrowthQuestion question;
  bool grow;
  double ask_after;
};

class Growth : public testing::TestWithParam<GrowthCase> {};

TEST_P(Growth, Holds) {
  const GrowthAnswer answer = decide_growth(GetParam().question);
  EXPECT_EQ(answer.grow, GetParam().grow) << answer.why;
  EXPECT_NEAR(answer.ask_after, GetParam().ask_after, 1e-9) << answer.why;
}

INSTANTIATE_TEST_SUITE_P(
    Table, Growth,
    testing::Values(
        GrowthCase{"nobody waits", {.now = 100, .size = 2, .joining = 0, .warm = true}, false, 0},
        GrowthCase{"warm: at once", {.now = 100, .size = 2, .joining = 1, .warm = true}, true, 0},
        GrowthCase{"warm, grown a moment ago",
                   {.now = 100, .size = 2, .joining = 1, .warm = true, .last_growth = 97},
                   false,
                   2},
        GrowthCase{"cold, at a checkpoint",
                   {.now = 1000, .size = 2, .joining = 1, .world_since = 500, .checkpoint_at = 999},
                   true,
                   0},
        GrowthCase{"cold, the checkpoint is old",
                   {.now = 1000, .size = 2, .joining = 1, .world_since = 500, .checkpoint_at = 990},
                   false,
                   0},
        GrowthCase{"cold, a checkpoint of the world before",
                   {.now = 1000, .size = 2, .joining = 1, .world_since = 995, .checkpoint_at = 990},
                   false,
                   0},
        GrowthCase{"cold, at the beginning",
                   {.now = 10, .size = 1, .joining = 3, .last_joined = 2},
                   true,
                   0},
        GrowthCase{"cold, the program may yet say that it is a client",
                   {.now = 2, .size = 1, .joining = 3, .last_joined = 1},
                   false,
                   3},
        GrowthCase{"cold, more are coming",
                   {.now = 9, .size = 1, .joining = 3, .last_joined = 8.5},
                   false,
                   1.5},
        GrowthCase{"cold, the beginning is over", {.now = 31, .size = 1, .joining = 3}, false, 0},
        GrowthCase{"cold, the restart is dear",
                   {.now = 30,
                    .size = 4,
                    .joining = 1,
                    .world_since = 1,
                    .checkpoint_at = 29.5,
                    .restart_seconds = 20},
                   false,
                   0}));

TEST(EndCause, WhatEndedARank) {
  EXPECT_EQ(judge_end({.code = 0}, false), EndCause::kFinished);
  EXPECT_EQ(judge_end({.code = 1}, false), EndCause::kOwnFault);
  EXPECT_EQ(judge_end({.code = 1}, true), EndCause::kLost);
  EXPECT_EQ(judge_end({.signal = SIGKILL}, false), EndCause::kLost);
  EXPECT_EQ(judge_end({.signal = SIGSEGV}, false), EndCause::kOwnFault);
  EXPECT_EQ(judge_end({.signal = SIGABRT}, true), EndCause::kLost);
}

TEST(Restart, OwnFaultsAreCountedAndLossesAreNot) {
  EXPECT_FALSE(decide_restart({.cause = EndCause::kOwnFault, .own_faults = 1}).restart);
  EXPECT_TRUE(
      decide_restart({.cause = EndCause::kOwnFault, .own_faults = 1, .max_failures = 1}).restart);
  EXPECT_FALSE(
      decide_restart({.cause = EndCause::kOwnFault, .own_faults = 2, .max_failures = 1}).restart);
  EXPECT_TRUE(decide_restart({.cause = EndCause::kLost, .own_faults = 9}).restart);
}

TEST(Restart, WorldsWithoutProgressAreGivenUp) {
  EXPECT_TRUE(decide_restart({.fruitless = kMostFruitless - 1}).restart);
  EXPECT_FALSE(decide_restart({.fruitless = kMostFruitless}).restart);
}

// A run on a simulated clock. Workers come and go by a trace; the world shrinks at once and grows
// when the decision says so. Work is done at a rate of the world's size; a cold restart loses what
// was done since the last checkpoint, and takes its time.
struct Trace {
  struct Change {
    double at;
    int workers;
  };
  std::vector<Change> changes;
  double end;
};

struct Outcome {
  double work = 0;
  int growths = 0;
  double shortest_interval = 1e9;
};

Outcome simulate(const Trace& trace, bool warm, bool always_grow, double restart_seconds,
                 double checkpoint_every, double min_interval) {
  Outcome outcome;
  int size = 1, workers = 1;
  double world_since = 0, busy_until = 0, saved_work = 0, last_joined = 0;
  std::optional<double> checkpoint_at, last_growth;
  size_t next = 0;
  double next_checkpoint = checkpoint_every;
  const double tick = 0.5;
  for (double now = 0; now < trace.end; now += tick) {
    while (next < trace.changes.size() && trace.changes[next].at <= now) {
      const int before = workers;
      workers = std::max(1, trace.changes[next++].workers);
      if (workers > before) last_joined = now;
      if (workers >= size) continue;
      size = workers;  // shrinking is not a choice
      world_since = now;
      if (warm) continue;
      outcome.work = saved_work;
      busy_until = now + restart_seconds;
    }
    if (now >= busy_until) outcome.work += size * tick;
    if (now >= next_checkpoint && now >= busy_until) {
      saved_work = outcome.work;
      checkpoint_at = now;
      next_checkpoint = now + checkpoint_every;
    }
    // A warm world takes joiners in behind a checkpoint only.
    if (warm && checkpoint_at != now) continue;
    const GrowthAnswer answer = decide_growth({.now = now,
                                               .size = size,
                                               .joining = workers - size,
                                               .warm = warm,
                                               .run_since = 0,
                                               .world_since = world_since,
                                               .checkpoint_at = checkpoint_at,
                                               .last_growth = last_growth,
                                               .last_joined = last_joined,
                                               .restart_seconds = restart_seconds,
                                               .min_interval = min_interval});
    if (workers > size && (answer.grow || (always_grow && now >= busy_until))) {
      if (last_growth)
        outcome.shortest_interval = std::min(outcome.shortest_interval, now - *last_growth);
      ++outcome.growths;
      last_growth = world_since = now;
      size = workers;
      if (!warm) {
        outcome.work = saved_work;
        busy_until = now + restart_seconds;
      }
    }
  }
  return outcome;
}

Trace random_trace(uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> pause(1.0 / 120);
  std::uniform_int_distribution<int> workers(1, 4);
  Trace trace{{}, 3600};
  for (double at = pause(random); at < trace.end; at += pause(random))
    trace.changes.push_back({at, workers(random)});
  return trace;
}

TEST(GrowthOverTime, NeverMoreOftenThanTheInterval) {
  for (uint32_t seed = 1; seed <= 50; ++seed)
    for (const bool warm : {false, true}) {
      const Outcome outcome = simulate(random_trace(seed), warm, false, 10, 40, 30);
      EXPECT_GE(outcome.shortest_interval, warm ? kWarmInterval : 30) << "seed " << seed;
    }
}

TEST(GrowthOverTime, BetterThanGrowingWheneverItIsPossible) {
  double careful = 0, eager = 0;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    careful += simulate(random_trace(seed), false, false, 10, 40, 30).work;
    eager += simulate(random_trace(seed), false, true, 10, 40, 30).work;
  }
  EXPECT_GT(careful, eager);
}

TEST(GrowthOverTime, BetterThanNeverGrowing) {
  double careful = 0, never = 0;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    careful += simulate(random_trace(seed), false, false, 10, 40, 30).work;
    never += simulate(random_trace(seed), false, false, 10, 40, 1e9).work;
  }
  EXPECT_GT(careful, 1.2 * never);
}

// As seen on a busy cluster: a GPU that comes and goes every few seconds.
TEST(GrowthOverTime, FlappingIsNotFollowedMoreOftenThanThat) {
  Trace trace{{}, 600};
  for (double at = 1; at < 600; at += 1)
    trace.changes.push_back({at, static_cast<int>(at) % 2 == 0 ? 1 : 2});
  const Outcome outcome = simulate(trace, true, false, 0.3, 3, 30);
  EXPECT_LE(outcome.growths, 600 / kWarmInterval + 1);
}

// A recorded day in little: all at once, all but one taken, back one by one.
TEST(GrowthOverTime, ComesBackToFullSize) {
  const Trace trace{{{1, 4}, {200, 1}, {260, 2}, {300, 3}, {340, 4}}, 900};
  EXPECT_GT(simulate(trace, true, false, 0.3, 20, 10).work, 0.85 * (200 * 4 + 60 + 560 * 4 - 200));
  EXPECT_GE(simulate(trace, true, false, 0.3, 20, 10).growths, 4);
}

}  // namespace
}  // namespace af
