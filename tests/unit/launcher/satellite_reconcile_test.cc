// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_reconcile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace af {
namespace {

using Outcome = SubmissionOutcome;

ChildResult answer(int code, const std::string& out, const std::string& err = "") {
  ChildResult result;
  result.code = code;
  result.out = out;
  result.err = err;
  return result;
}

ChildResult no_answer(const std::string& err = "") {
  ChildResult result;
  result.signal = 9;
  result.timed_out = true;
  result.err = err;
  return result;
}

TEST(SubmissionOutcome, Table) {
  const auto refusal = [](const char* text) {
    return answer(1, "", std::string("sbatch: error: Batch job submission failed: ") + text + "\n");
  };
  ChildResult missing = answer(127, "");
  missing.problem = "cannot find the program 'sbatch' in PATH";
  const struct {
    ChildResult sbatch;
    Outcome::Kind kind;
    const char *job, *text;
  } table[] = {
      {answer(0, "12\n"), Outcome::kAccepted, "12", ""},
      {answer(0, "12;cluster\n"), Outcome::kAccepted, "12", ""},
      {answer(0, "Welcome!\n12\n"), Outcome::kAccepted, "12", ""},
      {answer(0, ""), Outcome::kUnknown, "", ""},
      {answer(0, "Submitted batch job\n"), Outcome::kUnknown, "", ""},
      {no_answer(), Outcome::kUnknown, "", "sbatch has not answered"},
      {no_answer("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"),
       Outcome::kUnknown, "", "Slurm temporarily unable to accept job, sleeping and retrying"},
      {refusal("Unable to contact slurm controller (connect failure)"), Outcome::kUnknown, "",
       "Unable to contact slurm controller (connect failure)"},
      {refusal("Socket timed out on send/recv operation"), Outcome::kUnknown, "",
       "Socket timed out on send/recv operation"},
      {refusal("Access/permission denied"), Outcome::kRefused, "", "Access/permission denied"},
      {refusal("Invalid account or account/partition combination specified"), Outcome::kRefused, "",
       "Invalid account or account/partition combination specified"},
      {refusal("User's group not permitted to use this partition"), Outcome::kRefused, "",
       "User's group not permitted to use this partition"},
      {refusal("Invalid qos specification"), Outcome::kRefused, "", "Invalid qos specification"},
      {refusal("Requested node configuration is not available"), Outcome::kRefused, "",
       "Requested node configuration is not available"},
      {answer(1, "", "sbatch: error: af: af.yaml has no spare way\n"), Outcome::kRefused, "",
       "af: af.yaml has no spare way"},
      {refusal("Job violates accounting/QOS policy (job submit limit, user's size and/or time "
               "limits)"),
       Outcome::kLimited, "",
       "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"},
      {answer(1, "",
              "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission "
              "failed: Job violates\n"),
       Outcome::kLimited, "", "Job violates"},
      {refusal("Requested time limit is invalid (missing or exceeds some limit)"),
       Outcome::kTooLong, "", "Requested time limit is invalid (missing or exceeds some limit)"},
      {refusal("Unspecified error"), Outcome::kLimited, "", "Unspecified error"},
      {answer(3, ""), Outcome::kLimited, "", "sbatch ended with 3"},
      {missing, Outcome::kRefused, "", "cannot find the program 'sbatch' in PATH"},
  };
  for (const auto& row : table) {
    const Outcome outcome = submission_outcome(row.sbatch);
    EXPECT_EQ(outcome.kind, row.kind) << row.sbatch.err << row.sbatch.out;
    EXPECT_EQ(outcome.job, row.job);
    EXPECT_EQ(outcome.text, row.text);
  }
}

TEST(Queue, Lines) {
  const auto queue = queue_of(answer(0, "12|PENDING|0:00|\n13|RUNNING|1-02:03:04|n1\n"));
  ASSERT_TRUE(queue);
  ASSERT_EQ(queue->size(), 2u);
  EXPECT_EQ((*queue)[0].job, "12");
  EXPECT_EQ((*queue)[0].state, "PENDING");
  EXPECT_EQ((*queue)[0].node, "");
  EXPECT_EQ((*queue)[1].seconds, 86400 + 2 * 3600 + 3 * 60 + 4);
  EXPECT_EQ((*queue)[1].node, "n1");
  EXPECT_TRUE(queue_of(answer(0, "")) && queue_of(answer(0, ""))->empty());
  // Unknown is not zero.
  EXPECT_FALSE(queue_of(answer(1, "", "slurm_load_jobs error: Unable to contact")));
  EXPECT_FALSE(queue_of(no_answer()));
  EXPECT_FALSE(queue_of(answer(0, "12|PENDING\n")));
  EXPECT_FALSE(queue_of(answer(0, "what|is|this|now\n")));
}

TEST(Queue, Times) {
  const struct {
    const char* text;
    double seconds;
  } table[] = {{"0:07", 7},    {"12:07", 727}, {"1:00:00", 3600}, {"2-00:00:01", 172801},
               {"INVALID", 0}, {"", 0}};
  for (const auto& row : table) EXPECT_EQ(slurm_seconds(row.text), row.seconds) << row.text;
}

// --- single rules

struct Pool {
  PoolState state;
  double now = 1000;
  std::vector<std::string> said, events;

  explicit Pool(int wanted) {
    state.name = "af-1-n";
    state.wanted = wanted;
  }
  void take(const PoolReports& reports) {
    for (const PoolReport& one : reports) {
      if (!one.text.empty()) said.push_back(one.text);
      if (!one.event.empty()) events.push_back(one.event);
    }
  }
  PoolAction next() const { return reconcile(state, now); }
  PoolAction::Kind kind() const { return next().kind; }
  void submit(const std::string& job) {
    EXPECT_EQ(kind(), PoolAction::kSubmit);
    take(on_submission(state, {.kind = Outcome::kAccepted, .job = job}, now, 0.5));
  }
  void fail(Outcome::Kind kind, const char* text = "no") {
    take(on_submission(state, {.kind = kind, .job = "", .text = text}, now, 0.5));
  }
  void look_up(std::optional<std::vector<QueuedJob>> queue) {
    EXPECT_EQ(kind(), PoolAction::kLookUp);
    take(on_queue(state, queue, now, 0.5));
  }
  void wait() {
    const PoolAction action = next();
    ASSERT_EQ(action.kind, PoolAction::kNothing);
    ASSERT_TRUE(std::isfinite(action.at));
    now = action.at;
  }
};

TEST(Reconcile, AtMostTwoArePending) {
  Pool pool(5);
  pool.submit("11");
  pool.submit("12");
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  on_joined(pool.state, "11", "n1", pool.now);
  pool.submit("13");
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  // Told by the queue that it runs: it does not pend any more.
  pool.wait();
  pool.look_up(
      {{{"11", "RUNNING", 1, "n1"}, {"12", "RUNNING", 1, "n2"}, {"13", "PENDING", 0, ""}}});
  EXPECT_EQ(pool.kind(), PoolAction::kSubmit);
}

TEST(Reconcile, NothingIsAskedWhenAllIsExplained) {
  Pool pool(1);
  pool.submit("11");
  EXPECT_TRUE(std::isfinite(pool.next().at));
  on_joined(pool.state, "11", "n1", pool.now);
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  EXPECT_EQ(pool.next().at, kNever);
}

TEST(Reconcile, LooksAgainEveryFifteenSecondsDoublingToTwoMinutes) {
  Pool pool(1);
  pool.submit("11");
  std::vector<double> pauses;
  for (int i = 0; i < 6; ++i) {
    const double before = pool.now;
    pool.wait();
    pauses.push_back(pool.now - before);
    pool.look_up({{{"11", "PENDING", 0, ""}}});
  }
  EXPECT_EQ(pauses, (std::vector<double>{15, 30, 60, 120, 120, 120}));
  PoolState state = pool.state;
  on_queue(state, {{{"11", "PENDING", 0, ""}}}, pool.now, 0);
  EXPECT_DOUBLE_EQ(state.look_up_at, pool.now + 108);
  on_queue(state, {{{"11", "PENDING", 0, ""}}}, pool.now, 1);
  EXPECT_DOUBLE_EQ(state.look_up_at, pool.now + 132);
}

TEST(Reconcile, LooksAtOnceAfterADepartureAndThenSubmits) {
  Pool pool(1);
  pool.submit("11");
  on_joined(pool.state, "11", "n1", pool.now);
  pool.now += 500;
  on_left(pool.state, "11", 500, true, pool.now);
  pool.look_up({{{"11", "COMPLETED", 500, "n1"}}});
  EXPECT_EQ(pool.events, (std::vector<std::string>{"satellite_submitted", "satellite_ended"}));
  EXPECT_EQ(pool.kind(), PoolAction::kSubmit);
  EXPECT_TRUE(pool.state.excluded.empty());
}

// Two are taken back at once: the second one goes while sbatch is asked to replace the first.
TEST(Reconcile, LooksAtOnceAfterADepartureDuringASubmission) {
  Pool pool(2);
  pool.submit("11");
  pool.submit("12");
  for (const char* job : {"11", "12"}) on_joined(pool.state, job, "n1", pool.now);
  pool.now += 500;
  on_left(pool.state, "11", 500, true, pool.now);
  pool.look_up({{{"11", "COMPLETED", 500, "n1"}, {"12", "RUNNING", 500, "n1"}}});
  EXPECT_EQ(pool.kind(), PoolAction::kSubmit);
  on_left(pool.state, "12", 500, true, pool.now);
  pool.take(on_submission(pool.state, {.kind = Outcome::kAccepted, .job = "13"}, pool.now, 0.5));
  pool.look_up({{{"12", "COMPLETED", 500, "n1"}, {"13", "PENDING", 0, ""}}});
  pool.submit("14");
}

TEST(Reconcile, UnknownIsLookedUpBeforeAnythingElse) {
  Pool pool(2);
  pool.fail(Outcome::kUnknown);
  pool.look_up({{{"77", "PENDING", 0, ""}}});  // it had been accepted
  EXPECT_EQ(satellites_counted(pool.state), 1);
  EXPECT_EQ(pool.events.back(), "satellite_submitted");
  pool.now += 20;
  pool.look_up({{{"77", "PENDING", 0, ""}}});
  pool.submit("78");
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
}

// slurmctld answered, crashed, and has lost the job.
TEST(Reconcile, WhatTheControllerHasLostIsAskedForAgainOnceALookUpShowsIt) {
  Pool pool(1);
  pool.submit("11");
  pool.wait();
  pool.look_up(std::nullopt);
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  pool.wait();
  pool.look_up(std::nullopt);
  EXPECT_EQ(pool.said.size(), 1u);
  pool.wait();
  pool.look_up({std::vector<QueuedJob>{}});
  pool.submit("11");  // the same number again
}

TEST(Reconcile, WhileTheControllerIsSilentNothingIsSubmittedOrCancelled) {
  Pool pool(1);
  pool.submit("11");
  pool.wait();
  pool.look_up(std::nullopt);
  for (const int wanted : {5, 0, 1}) {
    pool.state.wanted = wanted;
    EXPECT_EQ(pool.kind(), PoolAction::kNothing) << wanted;
  }
  // An agent that joins or leaves tells nothing about the queue.
  on_joined(pool.state, "11", "n1", pool.now);
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  pool.wait();
  EXPECT_EQ(pool.kind(), PoolAction::kLookUp);
}

TEST(Reconcile, ARefusalForGoodIsSaidOnceAndEndsIt) {
  Pool pool(3);
  pool.fail(Outcome::kRefused, "Invalid qos specification");
  EXPECT_EQ(pool.said, std::vector<std::string>{
                           "no further GPU can be asked for: Invalid qos specification; the run "
                           "goes on with those that it has"});
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  EXPECT_EQ(pool.next().at, kNever);
}

TEST(Reconcile, HalvesATimeThatIsTooLongUntilItIsNotWorthIt) {
  Pool pool(1);
  std::vector<double> lives;
  for (int i = 0; i < 20 && pool.kind() == PoolAction::kSubmit; ++i) {
    const double asked = std::min(3600.0, pool.state.longest);
    lives.push_back(asked);
    Outcome outcome{.kind = Outcome::kTooLong};
    outcome.asked = asked;
    pool.take(on_submission(pool.state, outcome, pool.now, 0.5));
  }
  EXPECT_EQ(lives, (std::vector<double>{3600, 1800, 900, 450, 225}));
  EXPECT_TRUE(pool.state.refused);
  EXPECT_EQ(pool.said.size(), 1u);
}

TEST(Reconcile, ALimitMakesItWaitLongerAndLonger) {
  Pool pool(1);
  std::vector<double> pauses;
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(pool.kind(), PoolAction::kSubmit);
    pool.fail(Outcome::kLimited);
    const double before = pool.now;
    pool.wait();
    pauses.push_back(pool.now - before);
  }
  EXPECT_EQ(pauses, (std::vector<double>{60, 120, 240, 480, 600, 600}));
  EXPECT_EQ(pool.said.size(), 1u);
  pool.submit("11");
  EXPECT_EQ(pool.state.submit_every, 60);
}

TEST(Reconcile, ANodeWhereOneDiesAtItsStartIsAvoidedAndThreeAreEnough) {
  Pool pool(1);
  for (int i = 1; i <= 3; ++i) {
    const std::string job = std::to_string(10 + i), node = "n" + std::to_string(i);
    pool.submit(job);
    pool.wait();
    pool.look_up({{{job, "FAILED", 1, node}}});
    EXPECT_TRUE(pool.state.excluded.contains(node));
  }
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  EXPECT_EQ(pool.next().at, kNever);
  ASSERT_EQ(pool.said.size(), 3u);
  EXPECT_NE(pool.said.back().find("asks for no more"), std::string::npos) << pool.said.back();
}

TEST(Reconcile, WhoseFaultAnEndIs) {
  const struct {
    const char* what;
    bool joins;
    double lifetime;
    bool explained;
    const char* state;
    int strikes;
  } table[] = {
      {"never joined, failed", false, 0, false, "FAILED", 1},
      {"never joined, gave up", false, 0, false, "COMPLETED", 1},
      {"never joined, preempted", false, 0, false, "PREEMPTED", 0},
      {"never joined, its node died", false, 0, false, "NODE_FAIL", 0},
      {"never joined, past the deadline", false, 0, false, "DEADLINE", 0},
      {"joined, died at once", true, 2, false, "FAILED", 1},
      {"joined, preempted at once", true, 2, true, "COMPLETED", 0},
      {"joined, preempted without notice", true, 2, false, "PREEMPTED", 0},
      {"joined, died later", true, 61, false, "FAILED", 0},
  };
  for (const auto& row : table) {
    SCOPED_TRACE(row.what);
    Pool pool(1);
    pool.submit("11");
    if (row.joins) {
      on_joined(pool.state, "11", "n1", pool.now);
      pool.now += row.lifetime;
      pool.take(on_left(pool.state, "11", row.lifetime, row.explained, pool.now));
    } else {
      pool.wait();
    }
    pool.look_up({{{"11", row.state, row.lifetime, "n1"}}});
    EXPECT_EQ(pool.state.strikes, row.strikes);
    EXPECT_EQ(pool.kind(), PoolAction::kSubmit);
  }
}

TEST(Reconcile, OneThatAPersonHasCancelledIsNotReplacedAtOnce) {
  Pool pool(1);
  pool.submit("11");
  pool.wait();
  pool.look_up({{{"11", "CANCELLED", 0, ""}}});
  EXPECT_EQ(pool.kind(), PoolAction::kNothing);
  const double before = pool.now;
  pool.wait();
  EXPECT_EQ(pool.now - before, 60);
  EXPECT_EQ(pool.said.size(), 1u);
  pool.submit("12");
}

TEST(Reconcile, CancelsOnlyPendingOnesThatAreTooManyTheYoungestFirst) {
  Pool pool(3);
  pool.submit("11");
  on_joined(pool.state, "11", "n1", pool.now);
  pool.now += 1;
  pool.submit("12");
  pool.now += 1;
  pool.submit("13");
  pool.state.wanted = 2;
  PoolAction action = pool.next();
  ASSERT_EQ(action.kind, PoolAction::kCancel);
  EXPECT_EQ(action.jobs, std::vector<std::string>{"13"});
  EXPECT_TRUE(action.pending_only);
  pool.take(on_cancelled(pool.state, action.jobs, true, pool.now));
  // It had started before scancel came.
  pool.look_up(
      {{{"11", "RUNNING", 9, "n1"}, {"12", "PENDING", 0, ""}, {"13", "RUNNING", 0, "n2"}}});
  pool.state.wanted = 0;
  pool.now += 15;
  if (pool.kind() == PoolAction::kLookUp)
    pool.look_up(
        {{{"11", "RUNNING", 9, "n1"}, {"12", "PENDING", 0, ""}, {"13", "RUNNING", 0, "n2"}}});
  action = pool.next();
  ASSERT_EQ(action.kind, PoolAction::kCancel);
  EXPECT_EQ(action.jobs, std::vector<std::string>{"12"});
}

TEST(Reconcile, AScancelThatFailsIsNotRepeatedWithoutAPause) {
  Pool pool(1);
  pool.submit("11");
  pool.state.wanted = 0;
  int cancels = 0;
  for (const double end = pool.now + 100; pool.now < end;) {
    const PoolAction action = pool.next();
    if (action.kind == PoolAction::kCancel) {
      ++cancels;
      pool.take(on_cancelled(pool.state, action.jobs, false, pool.now));
    } else if (action.kind == PoolAction::kLookUp) {
      pool.look_up({{{"11", "PENDING", 0, ""}}});
    } else {
      pool.wait();
    }
  }
  EXPECT_GE(cancels, 2);
  EXPECT_LE(cancels, 8);
}

TEST(Reconcile, WhatHoldsAGpuWithoutAnAgentIsCancelled) {
  Pool pool(1);
  pool.submit("11");
  on_joined(pool.state, "11", "n1", pool.now);
  pool.now += 100;
  on_left(pool.state, "11", 100, false, pool.now);
  double cancelled_at = 0;
  for (const double left_at = pool.now; pool.now < left_at + 200 && cancelled_at == 0;) {
    const PoolAction action = pool.next();
    if (action.kind == PoolAction::kLookUp) {
      pool.look_up({{{"11", "RUNNING", 100, "n1"}}});
    } else if (action.kind == PoolAction::kCancel) {
      EXPECT_EQ(action.jobs, std::vector<std::string>{"11"});
      EXPECT_FALSE(action.pending_only);
      cancelled_at = pool.now - left_at;
    } else if (action.kind == PoolAction::kSubmit) {
      pool.submit("12");
      on_joined(pool.state, "12", "n2", pool.now);
    } else {
      pool.wait();
    }
  }
  EXPECT_GE(cancelled_at, 60);
  EXPECT_LE(cancelled_at, 80);
}

TEST(Reconcile, SubmitsNothingWhenTheAnchorEndsSoon) {
  Pool pool(1);
  EXPECT_EQ(reconcile(pool.state, pool.now, false).kind, PoolAction::kNothing);
  EXPECT_EQ(reconcile(pool.state, pool.now, true).kind, PoolAction::kSubmit);
}

// Jobs that go before anybody sees why, where Slurm forgets at once (MinJobAge).
TEST(Reconcile, JobsThatVanishAgainAndAgainAreNotAskedForInALoop) {
  Pool pool(1);
  int submissions = 0;
  for (const double end = pool.now + 3600; pool.now < end;) {
    const PoolAction action = pool.next();
    if (action.kind == PoolAction::kSubmit) {
      pool.submit(std::to_string(++submissions));
    } else if (action.kind == PoolAction::kLookUp) {
      pool.look_up({std::vector<QueuedJob>{}});
    } else {
      pool.wait();
    }
  }
  EXPECT_LE(submissions, 60);
  EXPECT_GE(submissions, 3);
}

// --- a Slurm in which everything goes wrong, by chance, on a simulated clock

class World {
 public:
  explicit World(unsigned seed) : random_(seed) { pool_.name = "af-1-n"; }

  void run(double until, bool faults) {
    while (now_ < until) {
      now_ += 1;
      live(faults);
      const int commands_before = commands_;
      while (act(faults) && commands_ < commands_before + 20) {
      }
      ASSERT_LT(commands_, commands_before + 20) << "commands without a pause";
    }
  }

  void want(int wanted) { pool_.wanted = wanted; }
  int joined() const {
    return static_cast<int>(
        std::ranges::count_if(jobs_, [](const auto& job) { return job.second.joined; }));
  }
  int present() const { return static_cast<int>(jobs_.size()) - 1; }
  bool others_alive() const { return jobs_.contains(kTheirs); }
  const PoolState& pool() const { return pool_; }
  int commands_ = 0;

 private:
  struct Job {
    bool ours = true, running = false, joined = false;
    double started = 0;
    std::string node;
  };
  static constexpr int kTheirs = 1;  // another job of the person

  double chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool down() const { return now_ < down_until_; }

  void live(bool faults) {
    if (faults && !down() && chance() < 0.005) {
      down_until_ = now_ + 5 + 100 * chance();
      if (chance() < 0.5)  // a crash: what was not saved yet is gone, and its numbers are free
        for (auto job = jobs_.begin(); job != jobs_.end();)
          job = job->second.ours && !job->second.running && chance() < 0.5 ? jobs_.erase(job)
                                                                           : std::next(job);
    }
    for (auto one = jobs_.begin(); one != jobs_.end();) {
      Job& job = one->second;
      const std::string number = std::to_string(one->first);
      bool gone = false;
      if (!job.ours) {
      } else if (!job.running) {
        if (!down() && chance() < 0.2) {
          job.running = true;
          job.started = now_;
          job.node = "n" + std::to_string(1 + static_cast<int>(chance() * 6));
        }
      } else if (!job.joined) {
        if (chance() < 0.5) {
          job.joined = true;
          on_joined(pool_, number, job.node, now_);
        }
      } else if (faults && chance() < 0.01) {  // taken back, with or without a notice
        on_left(pool_, number, now_ - job.started, true, now_);
        gone = true;
      }
      if (gone) ended_[one->first] = {number, "PREEMPTED", now_ - job.started, job.node};
      one = gone ? jobs_.erase(one) : std::next(one);
    }
  }

  bool act(bool faults) {
    const PoolAction action = reconcile(pool_, now_);
    if (action.kind == PoolAction::kNothing) return false;
    ++commands_;
    if (pool_.silent) {
      EXPECT_EQ(action.kind, PoolAction::kLookUp) << "while the controller is silent";
    }
    switch (action.kind) {
      case PoolAction::kSubmit: {
        EXPECT_LT(
            std::ranges::count_if(
                jobs_, [&](const auto& job) { return job.second.ours && !job.second.running; }),
            kMostPending + lost_answers_);
        Outcome outcome{.kind = Outcome::kUnknown};
        if (!down() || (faults && chance() < 0.3)) {
          int number = 2;
          while (jobs_.contains(number) || ended_.contains(number)) ++number;
          jobs_[number] = {};
          outcome = {.kind = Outcome::kAccepted, .job = std::to_string(number)};
        }
        if (faults && chance() < 0.1) {  // the answer is lost
          if (outcome.kind == Outcome::kAccepted) ++lost_answers_;
          outcome = {.kind = Outcome::kUnknown};
        }
        on_submission(pool_, outcome, now_, chance());
        break;
      }
      case PoolAction::kLookUp: {
        std::optional<std::vector<QueuedJob>> queue;
        if (!down()) {
          queue.emplace();
          for (const auto& [number, job] : jobs_)
            if (job.ours)
              queue->push_back({std::to_string(number), job.running ? "RUNNING" : "PENDING",
                                now_ - job.started, job.node});
          for (const auto& [number, job] : ended_) queue->push_back(job);
          ended_.clear();
        }
        on_queue(pool_, queue, now_, chance());
        break;
      }
      case PoolAction::kCancel:
        if (!down())
          for (const std::string& number : action.jobs) {
            const auto job = jobs_.find(std::stoi(number));
            // As scancel does: only of our name, only pending ones if told so.
            if (job == jobs_.end() || !job->second.ours) continue;
            if (action.pending_only && job->second.running) continue;
            jobs_.erase(job);
          }
        on_cancelled(pool_, action.jobs, !down(), now_);
        break;
      default:
        break;
    }
    return true;
  }

  std::mt19937 random_;
  PoolState pool_;
  double now_ = 0, down_until_ = 0;
  int lost_answers_ = 0;
  std::map<int, Job> jobs_ = {{kTheirs, {.ours = false, .running = true}}};
  std::map<int, QueuedJob> ended_;
};

TEST(Reconcile, ComesToWhatIsWantedAfterAnyFaults) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    double until = 0;
    for (const int wanted : {3, 7, 1, 5}) {
      world.want(wanted);
      world.run(until += 1000, true);
    }
    world.run(until += 700, false);
    ASSERT_EQ(satellites_counted(world.pool()), std::max(5, world.joined()));
    ASSERT_GE(world.joined(), 5);
    ASSERT_EQ(world.present(), world.joined()) << "pending ones are left";
    ASSERT_TRUE(world.others_alive());
    ASSERT_EQ(world.pool().strikes, 0);
    // All is explained: Slurm is left alone.
    const int before = world.commands_;
    world.run(until += 3000, false);
    ASSERT_EQ(world.commands_, before);
  }
}

}  // namespace
}  // namespace af
