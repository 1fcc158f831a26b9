// SPDX-License-Identifier: Apache-2.0
// The coordinator of an elastic run, event by event. coordinator_random_test.cc has events in any
// order.
#include "launcher/coordinator.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <set>

#include "launcher/exit_codes.h"
#include "tests/unit/launcher/coordinator_run.h"

namespace af {
namespace {

using nlohmann::json;

std::vector<int> tasks_of(const json& order) {
  std::vector<int> tasks;
  for (const json& worker : order.at("workers")) tasks.push_back(worker.at("task").get<int>());
  return tasks;
}
using Tasks = std::vector<int>;

// --- the first world

TEST(Coordinator, TheAnchorAloneStartsAtOnceWhereNobodyElseCanCome) {
  CoordinatorRun run({.satellites = false});
  run.hello(0);
  run.arrive(0, -1, -1);
  const json world = run.take(0, "world");
  ASSERT_FALSE(world.is_null());
  EXPECT_EQ(world["generation"], 1);
  EXPECT_EQ(tasks_of(world), Tasks({0}));
  EXPECT_EQ(world["members"], json::parse(R"([{"was": -1, "step": -1, "in_step": false}])"));
}

TEST(Coordinator, TheAnchorWaitsALittleForSatellites) {
  CoordinatorRun run;
  EXPECT_EQ(run.satellites.wanted, 3);
  run.hello(0);
  run.arrive(0, -1, -1);
  run.pass(1.4);
  EXPECT_FALSE(run.has(0, "world"));
  run.pass(0.2);
  EXPECT_TRUE(run.has(0, "world"));
}

TEST(Coordinator, TheFirstWorldHasAllWhoComeInTime) {
  CoordinatorRun run;
  const int a = run.join(), b = run.join();
  EXPECT_TRUE(run.take(a, "start").is_null()) << "the program is not known to be a client";
  run.hello(0);
  EXPECT_EQ(tasks_of(run.take(a, "start")), Tasks({0, 1, 2}));
  EXPECT_FALSE(run.take(b, "start").is_null());
  for (const int task : {0, a, b}) run.hello(task);
  for (const int task : {0, a, b}) run.arrive(task, -1, -1);
  run.pass(1.6);
  for (const int task : {0, a, b}) EXPECT_EQ(tasks_of(run.take(task, "world")), Tasks({0, 1, 2}));
}

TEST(Coordinator, AProgramThatNeverComesDoesNotHoldTheFirstWorld) {
  CoordinatorRun run;
  run.join();
  run.hello(0);
  run.arrive(0, -1, -1);
  run.pass(29);
  EXPECT_FALSE(run.has(0, "world"));
  run.pass(2);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0}));
}

TEST(Coordinator, ASatelliteThatGoesWhileTheFirstWorldGathersIsNotWaitedFor) {
  CoordinatorRun run;
  const int a = run.join();
  run.hello(0);
  run.arrive(0, -1, -1);
  run.pass(2);
  run.lose(a);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0}));
}

TEST(Coordinator, TheAnchorsRankIsKilledWhileTheFirstWorldGathers) {
  CoordinatorRun run;
  const int a = run.join();
  run.hello(0);
  run.hello(a);
  run.arrive(a, -1, -1);
  EXPECT_FALSE(run.has(0, "change")) << "it has no world yet that could change";
  run.arrive(0, -1, -1);
  run.exit(0, 0, SIGKILL);
  EXPECT_FALSE(run.take(0, "start").is_null());
  run.hello(0);
  run.arrive(0, -1, -1);
  run.pass(2);
  EXPECT_EQ(tasks_of(run.take(a, "world")), Tasks({0, a}));
}

TEST(Coordinator, AWorkerThatHadWorkedIsForgivenItsLoss) {
  CoordinatorRun run;
  const int generation = run.train_with(2);
  run.tell(1, {{"op", "first_step"}, {"generation", generation}, {"step", 1}});
  run.lose(2, "connection closed");
  EXPECT_EQ(run.satellites.unexplained, 1) << "it had done nothing";
  run.lose(1, "connection closed");
  EXPECT_EQ(run.satellites.unexplained, 1);
  EXPECT_EQ(run.satellites.leaves, 2);
}

// --- growing

TEST(Coordinator, AWarmWorldGrowsBehindACheckpoint) {
  CoordinatorRun run;
  const int first = run.train_with(0);
  run.pass(40);
  const int a = run.join();
  EXPECT_EQ(tasks_of(run.take(a, "start")), Tasks({0, a}));
  run.hello(a);
  EXPECT_FALSE(run.has(0, "change")) << "it is not ready yet";
  run.arrive(a, -1, 20);
  EXPECT_EQ(run.take(0, "change")["when"], "checkpoint");
  EXPECT_FALSE(run.has(a, "world"));
  run.arrive(0, first, 40);
  const json world = run.take(0, "world");
  EXPECT_EQ(world["generation"], first + 1);
  EXPECT_EQ(world["members"], json::parse(R"([{"was": 0, "step": 40, "in_step": false},
                                             {"was": -1, "step": 20, "in_step": false}])"));
  EXPECT_EQ(run.take(a, "world"), world);
}

TEST(Coordinator, OneThatComesWhileTheOthersAgreeIsTakenInAsWell) {
  CoordinatorRun run;
  const int first = run.train_with(0);
  run.pass(40);
  const int a = run.join(), b = run.join();
  for (const int task : {a, b}) run.hello(task);
  run.arrive(a, -1, -1);
  run.arrive(b, -1, -1);
  run.arrive(0, first, 40);
  EXPECT_EQ(tasks_of(run.take(b, "world")), Tasks({0, a, b}));
}

TEST(Coordinator, AJoinerThatIsLostWhileTheOthersAgreeIsForgotten) {
  CoordinatorRun run;
  const int first = run.train_with(0);
  run.pass(40);
  const int a = run.join();
  run.hello(a);
  run.arrive(a, -1, -1);
  EXPECT_TRUE(run.has(0, "change"));
  run.lose(a);
  run.arrive(0, first, 40);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0}));
}

TEST(Coordinator, MoreThanAreWantedAreSentAway) {
  CoordinatorRun run({.max_workers = 2});
  EXPECT_EQ(run.join(), 1);
  EXPECT_EQ(run.join(), -1);
  EXPECT_EQ(run.refused, "there are enough workers");
}

// --- leaving with notice

TEST(Coordinator, AWorldShrinksByNotice) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
  for (const int task : {0, 1, 2}) EXPECT_EQ(run.take(task, "change")["when"], "step");
  run.tell(1, {{"op", "notice"}, {"reason", "preempted"}, {"deadline", 1234.5}});
  EXPECT_EQ(run.take(1, "notice")["deadline"], 1234.5);
  for (const int task : {0, 1, 2}) {
    EXPECT_FALSE(run.has(0, "world"));
    run.arrive(task, first, 7);
  }
  const json world = run.take(0, "world");
  EXPECT_EQ(tasks_of(world), Tasks({0, 2}));
  EXPECT_EQ(world["members"], json::parse(R"([{"was": 0, "step": 7, "in_step": false},
                                             {"was": 2, "step": 7, "in_step": false}])"));
  EXPECT_FALSE(run.take(1, "leave").is_null());
  run.exit(1, 0);
  EXPECT_FALSE(run.take(1, "exit").is_null());
  run.lose(1);
  EXPECT_EQ(run.satellites.unexplained, 0);
  run.pass(5);
  EXPECT_FALSE(run.has(0, "lost"));
  EXPECT_FALSE(run.code);
}

TEST(Coordinator, OneThatHasNoticeAndIsKilledAtOnce) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
  run.lose(1);
  run.arrive(0, first, 7, true);
  run.arrive(2, first, 6, true);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0, 2}));
}

TEST(Coordinator, OneThatIsTakenBackBeforeItHasJoined) {
  CoordinatorRun run;
  run.train_with(0);
  const int a = run.join();
  EXPECT_TRUE(run.has(a, "start"));
  run.tell(a, {{"op", "told"}, {"signal", SIGTERM}});
  EXPECT_FALSE(run.take(a, "end").is_null());
  run.exit(a, 0, SIGTERM);
  EXPECT_FALSE(run.take(a, "exit").is_null());
}

// --- leaving without

TEST(Coordinator, SurvivorsHearAtOnceThatAWorldIsLost) {
  CoordinatorRun run;
  const int first = run.train_with(3);
  run.tell(0, {{"op", "first_step"}, {"generation", first}, {"step", 1}});
  run.lose(2);
  EXPECT_FALSE(run.has(2, "lost"));
  for (const int task : {0, 1, 3}) EXPECT_EQ(run.take(task, "lost")["generation"], first);
  run.arrive(3, first, 12, true);
  run.arrive(0, first, 11, true);
  EXPECT_FALSE(run.has(0, "world"));
  run.arrive(1, first, 12, false);
  const json world = run.take(0, "world");
  EXPECT_EQ(tasks_of(world), Tasks({0, 1, 3}));
  EXPECT_EQ(world["members"], json::parse(R"([{"was": 0, "step": 11, "in_step": true},
                                             {"was": 1, "step": 12, "in_step": false},
                                             {"was": 3, "step": 12, "in_step": true}])"));
  EXPECT_EQ(run.satellites.unexplained, 1);
}

TEST(Coordinator, SilenceForThreeSecondsIsALoss) {
  CoordinatorRun run;
  run.train_with(2);
  run.silence(1);
  run.pass(1.9);  // the last one may have been a second ago
  EXPECT_FALSE(run.has(0, "lost"));
  run.pass(2.2);
  EXPECT_EQ(run.closed, std::vector<int>({1}));
  EXPECT_TRUE(run.has(0, "lost"));
}

TEST(Coordinator, AnotherIsLostWhileArrivalsAreAwaited) {
  CoordinatorRun run;
  const int first = run.train_with(3);
  run.lose(2);
  run.arrive(0, first, 5);
  run.arrive(1, first, 5);
  run.lose(3);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0, 1}));
}

TEST(Coordinator, OneIsLostWhileTheOthersAgree) {
  CoordinatorRun run;
  const int first = run.train_with(3);
  run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
  run.arrive(0, first, 5);
  run.lose(3);
  EXPECT_FALSE(run.take(2, "lost").is_null());
  run.arrive(2, first, 5, true);
  // Nobody waits for the one that leaves.
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0, 2}));
  EXPECT_FALSE(run.take(1, "leave").is_null());
}

TEST(Coordinator, AllButOneAreLost) {
  CoordinatorRun run;
  const int first = run.train_with(3);
  for (const int task : {3, 1, 2}) run.lose(task);
  run.arrive(0, first, 9);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0}));
  EXPECT_FALSE(run.code);
}

TEST(Coordinator, TheAnchorsRankIsKilledAndComesBack) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.exit(0, 0, SIGKILL);
  for (const int task : {1, 2}) run.arrive(task, first, 5);
  const json world = run.take(1, "world");
  EXPECT_EQ(tasks_of(world), Tasks({1, 2}));
  EXPECT_FALSE(run.take(0, "start").is_null());
  run.hello(0);
  run.arrive(0, -1, 0);
  run.pass(40);
  EXPECT_TRUE(run.has(1, "change"));
  for (const int task : {1, 2}) run.arrive(task, first + 1, 20);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0, 1, 2}));
}

TEST(Coordinator, AWorldThatIsCutOffAsAWholeIsOverBeforeAnotherBegins) {
  CoordinatorRun run;
  const int first = run.train_with(1);
  run.exit(0, 0, SIGKILL);
  run.arrive(1, first, 5);
  EXPECT_EQ(tasks_of(run.take(1, "world")), Tasks({1}));
  run.forget();
  run.silence(1);
  run.pass(4.2);
  EXPECT_EQ(run.closed, std::vector<int>({1}));
  EXPECT_FALSE(run.take(0, "end").is_null());
  run.exit(0, 0, SIGTERM);
  run.pass(9);
  EXPECT_FALSE(run.has(0, "start")) << "it may still train";
  run.pass(5);
  EXPECT_EQ(tasks_of(run.take(0, "start")), Tasks({0}));
}

TEST(Coordinator, ARankThatDoesNotArriveIsEnded) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.lose(1);
  run.arrive(0, first, 5);
  run.pass(9);
  EXPECT_FALSE(run.has(2, "end"));
  run.pass(1.5);
  EXPECT_FALSE(run.take(2, "end").is_null());
  run.exit(2, 0, SIGKILL);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0}));
  EXPECT_FALSE(run.take(2, "start").is_null()) << "its GPU is still there";
}

TEST(Coordinator, AChangeOnWhichOnlySomeAgreeIsALoss) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
  run.arrive(0, first, 5);
  run.pass(10.5);
  EXPECT_FALSE(run.take(2, "lost").is_null());
  run.arrive(2, first, 5);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0, 2}));
}

// --- worlds that cannot be formed

TEST(Coordinator, AWorldThatCannotBeFormedIsFormedAnew) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.arrive(1, first, -1);
  for (const int task : {0, 2}) EXPECT_EQ(run.take(task, "lost")["generation"], first);
  for (const int task : {0, 2}) run.arrive(task, first, -1);
  EXPECT_EQ(run.take(1, "world")["generation"], first + 1);
}

TEST(Coordinator, AfterThreeWorldsWithoutAStepAllAreStartedAnew) {
  CoordinatorRun run;
  int generation = run.train_with(1);
  for (; !run.has(0, "end") && generation < 10; ++generation) {
    run.arrive(0, generation, 5);
    if (!run.has(0, "end")) run.arrive(1, generation, 5);
  }
  EXPECT_EQ(generation, 4) << "three worlds without a step";
  run.exit(0, 0, SIGTERM);
  run.exit(1, 0, SIGTERM);
  EXPECT_EQ(tasks_of(run.take(0, "start")), Tasks({0, 1}));
}

TEST(Coordinator, AnArrivalIsGoodTwice) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.lose(1);
  run.arrive(0, first, 5);
  run.arrive(0, first, 5);
  EXPECT_FALSE(run.has(0, "world"));
  run.arrive(2, first, 5);
  EXPECT_FALSE(run.take(0, "world").is_null());
  EXPECT_FALSE(run.has(0, "world"));
}

// It was on its way while the others' arrivals made the next world.
TEST(Coordinator, AnArrivalFromAnEarlierWorldIsNoNews) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.lose(1);
  run.arrive(0, first, 5);
  run.arrive(2, first, 5);
  EXPECT_FALSE(run.take(0, "world").is_null());
  run.forget();
  run.arrive(0, first, 5);
  EXPECT_FALSE(run.has(2, "lost"));
  run.pass(20);
  EXPECT_FALSE(run.code);
}

TEST(Coordinator, MessagesOfUnknownWorkersAreNothing) {
  CoordinatorRun run;
  run.train_with(1);
  run.lose(1);
  for (const char* op : {"client", "arrive", "finished", "saved", "told", "notice", "rank_exit",
                         "cannot_start", "beat", "get", "set", "report"})
    for (const int task : {1, 99, -1}) run.tell(task, {{"op", op}, {"signal", SIGTERM}});
  run.lose(99);
  run.arrive(0, 1, 5);
  EXPECT_FALSE(run.take(0, "world").is_null());
  EXPECT_FALSE(run.code);
  EXPECT_FALSE(run.satellites.stopped);
}

// --- programs that are no clients, and restarts

struct Plain : testing::Test {
  // Two ranks that have been started together.
  void begin() {
    run.join();
    run.pass(6);
    EXPECT_FALSE(run.take(0, "end").is_null());
    run.exit(0, 0, SIGTERM);
    EXPECT_EQ(tasks_of(run.take(1, "start")), Tasks({0, 1}));
    EXPECT_EQ(run.take(0, "start")["generation"], 1);
    run.tell(0, {{"op", "report"}, {"rank", 0}});
  }
  CoordinatorRun run;
};

TEST_F(Plain, IsStartedAnewOnALoss) {
  begin();
  run.lose(1);
  EXPECT_FALSE(run.take(0, "end").is_null());
  run.exit(0, 1);
  EXPECT_EQ(tasks_of(run.take(0, "start")), Tasks({0}));
  EXPECT_FALSE(run.code);
}

TEST_F(Plain, ItsOwnFaultEndsTheRun) {
  begin();
  run.exit(0, 7);
  run.pass(0.5);
  EXPECT_FALSE(run.take(1, "end").is_null());
  run.exit(1, 0, SIGTERM);
  EXPECT_FALSE(run.take(1, "exit").is_null());
  run.lose(1);
  EXPECT_EQ(run.code, 7);
  EXPECT_EQ(run->exit_facts()["own_fault"], true);
}

TEST_F(Plain, ItMayFailAsOftenAsItSays) {
  begin();
  run.tell(0, {{"op", "options"}, {"max_failures", 1}});
  run.exit(0, 7);
  run.pass(0.5);
  run.exit(1, 0, SIGTERM);
  EXPECT_FALSE(run.take(0, "start").is_null());
  run.tell(0, {{"op", "report"}, {"rank", 0}});
  run.exit(0, 7);
  run.pass(0.5);
  run.exit(1, 0, SIGTERM);
  run.lose(1);
  EXPECT_EQ(run.code, 7);
}

TEST_F(Plain, RestartsWithoutProgressComeToAnEnd) {
  begin();
  run.tell(0, {{"op", "options"}, {"max_failures", 100}});
  int starts = 0;
  for (int i = 0; i < 10 && !run.satellites.stopped; ++i) {
    run.exit(0, 7);
    run.pass(0.5);
    run.exit(1, 0, SIGTERM);
    starts += run.has(0, "start");
    run.forget();
  }
  run.lose(1);
  EXPECT_EQ(starts, 2);
  EXPECT_EQ(run.code, 7);
}

TEST_F(Plain, WhatItsPeersLossHasCausedIsNoFault) {
  begin();
  run.exit(0, 1);
  run.pass(0.1);
  run.lose(1);
  EXPECT_FALSE(run.take(0, "start").is_null());
  EXPECT_FALSE(run.code);
}

TEST_F(Plain, WhatItsPeersLossHasCausedIsNoFaultAfterwardsEither) {
  begin();
  const int b = run.join();
  (void)b;
  run.exit(1, 0, SIGKILL);
  run.exit(0, 1);
  run.pass(0.5);
  EXPECT_FALSE(run.take(0, "start").is_null());
  EXPECT_FALSE(run.code);
}

TEST_F(Plain, AWorkerWhoseRanksAreKilledAgainAndAgainIsSentAway) {
  begin();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(run.has(1, "exit")) << i;
    run.exit(1, 0, SIGKILL);
    run.exit(0, 0, SIGTERM);
  }
  EXPECT_FALSE(run.take(1, "exit").is_null());
  run.forget();
  run.lose(1);
  run.pass(1);
  EXPECT_FALSE(run.code);
  // The anchor's own.
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(run.code) << i;
    run.exit(0, 0, SIGKILL);
  }
  EXPECT_EQ(run.code, 128 + SIGKILL);
}

TEST_F(Plain, IsStartedAnewWithoutTheOneThatHasNotice) {
  begin();
  run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
  for (const int task : {0, 1}) EXPECT_FALSE(run.take(task, "end").is_null());
  run.exit(1, 0, SIGTERM);
  run.exit(0, 0, SIGTERM);
  EXPECT_EQ(tasks_of(run.take(0, "start")), Tasks({0}));
  EXPECT_FALSE(run.take(1, "exit").is_null());
}

TEST_F(Plain, GrowsAtACheckpointThatIsSeen) {
  begin();
  run.pass(300);
  run.join();
  EXPECT_FALSE(run.has(0, "end"));
  run->checkpoint_seen("x.pt");
  run.settle();
  EXPECT_FALSE(run.take(0, "end").is_null());
  run.exit(0, 0, SIGTERM);
  run.exit(1, 0, SIGTERM);
  EXPECT_EQ(tasks_of(run.take(2, "start")), Tasks({0, 1, 2}));
}

TEST(Coordinator, ASatelliteThatCannotStartItsRankIsSentAway) {
  CoordinatorRun run;
  run.train_with(0);
  const int a = run.join();
  run.tell(a, {{"op", "cannot_start"}, {"why", "no such program"}, {"code", 127}});
  EXPECT_FALSE(run.take(a, "exit").is_null());
  run.lose(a);
  EXPECT_FALSE(run.code);
}

TEST(Coordinator, ASatelliteOfTheWorldThatCannotStartItsRankHoldsNobody) {
  CoordinatorRun run;
  run.join();
  run.pass(6);
  run.exit(0, 0, SIGTERM);
  EXPECT_FALSE(run.take(0, "start").is_null());
  run.tell(1, {{"op", "cannot_start"}, {"why", "no such program"}, {"code", 127}});
  EXPECT_FALSE(run.take(1, "exit").is_null());
  run.lose(1);
  EXPECT_FALSE(run.take(0, "end").is_null()) << "it waits for a rank that is not there";
  run.exit(0, 0, SIGTERM);
  EXPECT_EQ(tasks_of(run.take(0, "start")), Tasks({0}));
}

// --- the end

TEST(Coordinator, FiftyThatComeAndGo) {
  CoordinatorRun run;
  int generation = run.train_with(0);
  for (int i = 0; i < 50; ++i) {
    run.pass(40);
    const int task = run.join();
    ASSERT_GT(task, 0) << i;
    run.hello(task);
    run.arrive(task, -1, 0);
    ASSERT_FALSE(run.take(0, "change").is_null()) << i;
    run.arrive(0, generation, i);
    ASSERT_EQ(run.take(0, "world")["generation"], ++generation);
    run.tell(0, {{"op", "first_step"}, {"generation", generation}, {"step", i}});
    run.lose(task);
    ASSERT_FALSE(run.take(0, "lost").is_null()) << i;
    run.arrive(0, generation, i);
    ASSERT_EQ(run.take(0, "world")["generation"], ++generation);
    run.tell(0, {{"op", "first_step"}, {"generation", generation}, {"step", i}});
  }
  run.tell(0, {{"op", "finished"}});
  run.exit(0, 0);
  EXPECT_EQ(run.code, 0);
  // One world at a time, and each one ended before the next.
  bool open = false;
  int last = -1;
  for (const json& line : run.journal()) {
    if (line["event"] == "world_formed") {
      EXPECT_GT(line["generation"].get<int>(), last);
      EXPECT_TRUE(!open || line["because"] == "start") << line;
      open = true;
      last = line["generation"];
    }
    if (line["event"] == "world_ended") {
      EXPECT_TRUE(open) << line;
      open = false;
    }
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(run.journal().back()["event"], "run_end");
}

TEST(Coordinator, Finishes) {
  CoordinatorRun run;
  run.train_with(2);
  const int late = run.join();
  for (const int task : {1, 0, 2}) run.tell(task, {{"op", "finished"}});
  EXPECT_TRUE(run.satellites.stopped);
  EXPECT_EQ(run.join(), -1);
  EXPECT_EQ(run.refused, "the run is ending");
  for (const int task : {2, 0, 1}) run.exit(task, 0);
  for (const int task : {1, 2, late}) {
    EXPECT_FALSE(run.take(task, "exit").is_null()) << task;
    run.lose(task);
  }
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run->exit_facts()["finished"], true);
  EXPECT_EQ(run.satellites.unexplained, 0);
}

TEST(Coordinator, OneThatIsLostBehindTheLastStepIsNotNeeded) {
  CoordinatorRun run;
  run.train_with(2);
  run.tell(0, {{"op", "finished"}});
  run.lose(1);
  EXPECT_FALSE(run.has(0, "lost"));
  run.exit(0, 0);
  run.exit(2, 0);
  run.lose(2);
  EXPECT_EQ(run.code, 0);
}

TEST(Coordinator, OneThatIsLostInTheLastReductionLeavesNobodyBehind) {
  CoordinatorRun run;
  const int first = run.train_with(3);
  run.tell(0, {{"op", "finished"}});
  run.lose(1);
  run.arrive(2, first, 99, true);
  EXPECT_FALSE(run.has(2, "world")) << "3 may finish, or come as well";
  run.arrive(3, first, 99, true);
  EXPECT_EQ(tasks_of(run.take(2, "world")), Tasks({2, 3}));
  run.exit(0, 0);
  for (const int task : {2, 3}) run.tell(task, {{"op", "finished"}});
  for (const int task : {2, 3}) run.exit(task, 0);
  for (const int task : {2, 3}) {
    EXPECT_FALSE(run.take(task, "exit").is_null());
    run.lose(task);
  }
  EXPECT_EQ(run.code, 0);
}

// The one on which nobody waits any more was the last that a cold change waited for.
TEST(Coordinator, AnAgentThatIsLostWhileAllIsSavedAndEndedHoldsNobody) {
  CoordinatorRun run;
  run.join();
  run.pass(6);
  run.exit(0, 0, SIGTERM);
  run->save_all("time limit", 2000);
  run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
  run.exit(0, 0, SIGTERM);
  run.lose(1);
  EXPECT_TRUE(run.code);
}

// Two ranks of the new world are told by the numbers that they had in the old one.
TEST(Coordinator, RanksThatEndUnderTheirOldNumbersAreAllCounted) {
  CoordinatorRun run;
  const int first = run.train_with(3);
  run.lose(1);
  for (const int task : {0, 2, 3}) run.arrive(task, first, 5);
  run.tell(0, {{"op", "finished"}});
  for (const int task : {2, 3})
    run.tell(task, {{"op", "rank_exit"}, {"rank", 2}, {"code", 0}, {"signal", 0}});
  run.exit(0, 0);
  for (const int task : {2, 3}) run.lose(task);
  EXPECT_EQ(run.code, 0);
}

// What the ranks of a job that is being taken do: clients save and leave, others die of the TERM.
void leave_all(CoordinatorRun& run, const std::vector<int>& tasks, bool client) {
  for (int round = 0; round < 3 && !run.code; ++round) {
    for (const int task : tasks) {
      if (client) run.tell(task, {{"op", "saved"}, {"path", "x"}, {"step", 9}});
      run.exit(task, 0, client ? 0 : SIGTERM);
    }
    run.pass(5);
    for (const int task : tasks)
      if (task != 0 && run.has(task, "exit")) run.lose(task);
    run.pass(20);
  }
}

struct SaveCase {
  const char* name;
  bool client;
  std::function<void(CoordinatorRun&)> before;
};
class SaveAll : public testing::TestWithParam<SaveCase> {};

TEST_P(SaveAll, EndsTheRun) {
  CoordinatorRun run;
  GetParam().before(run);
  run.forget();
  run->save_all("time limit", 2000);
  run.settle();
  EXPECT_FALSE(run.take(0, "save").is_null());
  EXPECT_TRUE(run.satellites.stopped);
  leave_all(run, {0, 1, 2}, GetParam().client);
  ASSERT_TRUE(run.code);
  EXPECT_EQ(run.journal().back()["event"], "run_end");
  EXPECT_EQ(run->exit_facts()["finished"], false);
  EXPECT_EQ(run->exit_facts()["own_fault"], false);
  EXPECT_TRUE(!GetParam().client || run.code == 0);
}

INSTANTIATE_TEST_SUITE_P(
    Phases, SaveAll,
    testing::Values(SaveCase{"Running", true, [](CoordinatorRun& run) { run.train_with(2); }},
                    SaveCase{"Starting", false,
                             [](CoordinatorRun& run) {
                               run.join();
                               run.join();
                             }},
                    SaveCase{"Gathering", true,
                             [](CoordinatorRun& run) {
                               run.join();
                               run.join();
                               run.hello(0);
                               run.arrive(0, -1, -1);
                             }},
                    SaveCase{"Agreeing", true,
                             [](CoordinatorRun& run) {
                               const int first = run.train_with(2);
                               run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
                               run.arrive(0, first, 3);
                             }},
                    SaveCase{"Lost", true,
                             [](CoordinatorRun& run) {
                               const int first = run.train_with(2);
                               run.lose(1);
                               run.arrive(0, first, 3);
                             }},
                    SaveCase{"Ending", false,
                             [](CoordinatorRun& run) {
                               run.join();
                               run.join();
                               run.pass(6);
                             }},
                    SaveCase{"Restarted", false,
                             [](CoordinatorRun& run) {
                               run.join();
                               run.pass(6);
                               run.exit(0, 0, SIGTERM);
                             }}),
    [](const auto& one) { return one.param.name; });

TEST(Coordinator, ALossWhileSavingFormsAWorldThatSaves) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run->save_all("time limit", 2000);
  run.lose(1);
  EXPECT_FALSE(run.take(0, "lost").is_null());
  for (const int task : {0, 2}) run.arrive(task, first, 3);
  EXPECT_EQ(tasks_of(run.take(0, "world")), Tasks({0, 2}));
  leave_all(run, {0, 2}, true);
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run->exit_facts()["saved"], true);
}

TEST(Coordinator, AFrontThatHasGoneEndsTheRun) {
  CoordinatorRun run;
  run.train_with(1);
  run->front_left();
  run.settle();
  for (const int task : {0, 1}) EXPECT_FALSE(run.take(task, "end").is_null());
  run.exit(1, 0, SIGTERM);
  run.exit(0, 0, SIGTERM);
  run.lose(1);
  ASSERT_TRUE(run.code);
  EXPECT_EQ(*run.code, kExitLauncherLost);
}

TEST(Coordinator, AFrontThatHasGoneEndsTheRunInEveryPhase) {
  for (int phase = 0; phase < 3; ++phase) {
    CoordinatorRun run;
    const int first = run.train_with(2);
    if (phase == 0) run.lose(1);
    if (phase == 1) run.tell(1, {{"op", "told"}, {"signal", SIGTERM}});
    if (phase == 2) run.arrive(1, first, 3);
    run->front_left();
    run.settle();
    for (int round = 0; round < 3; ++round) {
      for (const int task : {0, 1, 2})
        if (run.has(task, "end")) run.exit(task, 0, SIGTERM);
      run.pass(15);
      for (const int task : {1, 2})
        if (run.has(task, "exit")) run.lose(task);
    }
    EXPECT_TRUE(run.code) << phase;
  }
}

TEST(Coordinator, OneThatHasNotComeToTheEndIsFreedWhenAnotherIsLost) {
  CoordinatorRun run;
  run.train_with(3);
  run.tell(0, {{"op", "finished"}});
  run.forget();
  run.lose(1);
  EXPECT_FALSE(run.has(0, "lost"));
  for (const int task : {2, 3}) EXPECT_TRUE(run.has(task, "lost")) << task;
}

TEST(Coordinator, NobodyIsStartedForAWorldOfThoseLeftBehind) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.tell(0, {{"op", "finished"}});
  run.lose(1);
  run.forget();
  run.arrive(2, first, 99);
  EXPECT_EQ(tasks_of(run.take(2, "world")), Tasks({2}));
  run.exit(0, 0);
  EXPECT_EQ(run.join(), -1);
  EXPECT_FALSE(run.has(0, "start"));
  run.tell(2, {{"op", "finished"}});
  run.exit(2, 0);
  run.lose(2);
  EXPECT_EQ(run.code, 0);
}

TEST(Coordinator, OneThatFailsBehindTheEndFailsTheRun) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run.tell(0, {{"op", "finished"}});
  run.lose(1);
  run.arrive(2, first, 99);
  run.exit(0, 7);
  run.exit(2, 0, SIGTERM);
  run.lose(2);
  EXPECT_EQ(run.code, 7);
}

TEST(Coordinator, AWorldThatIsFormedToSaveIsStillToldToStop) {
  CoordinatorRun run;
  const int first = run.train_with(2);
  run->save_all("time limit", 2000);
  run.lose(1);
  for (const int task : {0, 2}) run.arrive(task, first, 3);
  run.forget();
  run.exit(2, 9);
  EXPECT_FALSE(run.has(0, "end")) << "it may still be saving";
}

TEST(Coordinator, OneThatFitsIntoNoPlanIsSentAway) {
  CoordinatorRun run;
  run.train_with(1);
  Worker other = coordinator_test_worker(2);
  other.af_version = "2";
  std::string why;
  EXPECT_FALSE(run->satellite_joined(
      "8", other, [](const auto&) {}, [] {}, why));
  EXPECT_NE(why.find("install one version"), std::string::npos) << why;
  EXPECT_GE(run.join(), 0);
}

TEST(Coordinator, AMessageThatMakesNoSenseIsNotTheEnd) {
  CoordinatorRun run;
  run.train_with(1);
  run.tell(1, {{"op", "options"}, {"max_failures", "many"}});
  run.tell(1, {{"op", "arrive"}, {"generation", nullptr}});
  run.tell(1, {{"op", 7}});
  EXPECT_FALSE(run.code);
}

TEST(Coordinator, AnAgentThatDoesNotLeaveHoldsTheEndForFifteenSeconds) {
  CoordinatorRun run;
  run.train_with(1);
  for (const int task : {0, 1}) {
    run.tell(task, {{"op", "finished"}});
    run.exit(task, 0);
  }
  run.pass(14);
  EXPECT_FALSE(run.code);
  run.pass(2);
  EXPECT_EQ(run.code, 0);
}

TEST(Coordinator, AJobOfAFixedSizeIsRestartedAsOftenAsItSays) {
  CoordinatorRun run({.satellites = false, .max_workers = 2, .elastic = false, .tasks = 2});
  run.tell(0, {{"op", "options"}, {"max_failures", 1}});
  run.exit(1, 3);
  EXPECT_FALSE(run.take(0, "end").is_null());
  run.exit(0, 0, SIGTERM);
  EXPECT_EQ(run.take(1, "start")["generation"], 1);
  run.exit(1, 3);
  run.exit(0, 0, SIGTERM);
  EXPECT_FALSE(run.take(1, "exit").is_null());
  run.lose(1);
  EXPECT_EQ(run.code, 3);
}

}  // namespace
}  // namespace af
