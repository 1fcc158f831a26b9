// SPDX-License-Identifier: Apache-2.0
#include "launcher/requeue.h"

#include <gtest/gtest.h>

#include "launcher/exit_codes.h"

namespace af {
namespace {

TEST(Requeue, WhenAndWithWhichCode) {
  const struct {
    const char* what;
    RunEnd end;
    bool requeue;
    int code;
    const char* text;  // a part of it; "": nothing is said
  } kTable[] = {
      {"nothing has happened", {}, false, 0, ""},
      {"a failure", {.code = 7, .own_fault = true}, false, 7, ""},
      {"the launcher was lost", {.code = 121}, false, 121, ""},
      {"preempted, saved",
       {.end = JobEnd::kPreempted, .fruitless = 0, .job = "17"},
       true,
       kExitPreempted,
       "job 17 is requeued (preempted): attempt 1"},
      {"preempted, no handler",
       {.end = JobEnd::kPreempted, .code = 143, .fruitless = 1, .job = "17", .attempt = 4},
       true,
       143,
       "attempt 5"},
      {"time limit",
       {.end = JobEnd::kTimeLimit, .job = "17"},
       true,
       kExitPreempted,
       "requeued (time limit)"},
      {"a task of an array",
       {.end = JobEnd::kPreempted, .job = "17_3"},
       true,
       kExitPreempted,
       "job 17_3 is requeued"},
      {"scancel", {.end = JobEnd::kCancelled}, false, 0, ""},
      {"scancel, no handler", {.end = JobEnd::kCancelled, .code = 143}, false, 143, ""},
      {"Slurm has requeued it", {.end = JobEnd::kRequeued}, false, kExitPreempted, ""},
      {"Slurm has requeued it, no handler",
       {.end = JobEnd::kRequeued, .code = 143, .fruitless = 5},
       false,
       143,
       ""},
      {"failed by itself, then preempted",
       {.end = JobEnd::kPreempted, .code = 1, .own_fault = true, .job = "17"},
       false,
       1,
       "job 17 is not started again: the program had failed by itself"},
      {"had finished as the notice came",
       {.end = JobEnd::kPreempted, .finished = true},
       false,
       0,
       ""},
      {"second attempt without progress",
       {.end = JobEnd::kTimeLimit, .code = 143, .fruitless = 2},
       true,
       143,
       "requeued"},
      {"third attempt without progress",
       {.end = JobEnd::kTimeLimit, .code = 143, .fruitless = 3, .job = "17"},
       false,
       kExitNoProgress,
       "job 17 is not started again: 3 attempts in a row"},
      {"the person forbids it",
       {.end = JobEnd::kPreempted, .requeue = false, .job = "17"},
       false,
       kExitPreempted,
       "--no-requeue"},
      {"the person forbids it, no handler",
       {.end = JobEnd::kPreempted, .code = 143, .requeue = false},
       false,
       143,
       "--no-requeue"},
      {"salloc",
       {.end = JobEnd::kTimeLimit, .batch = false, .requeue = false},
       false,
       kExitPreempted,
       "only jobs of sbatch"},
  };
  for (const auto& row : kTable) {
    const RunVerdict verdict = judge(row.end);
    EXPECT_EQ(verdict.requeue, row.requeue) << row.what;
    EXPECT_EQ(verdict.code, row.code) << row.what;
    if (*row.text == '\0')
      EXPECT_EQ(verdict.text, "") << row.what;
    else
      EXPECT_NE(verdict.text.find(row.text), std::string::npos) << row.what << verdict.text;
    EXPECT_EQ(verdict.fruitless, row.code == kExitNoProgress) << row.what;
  }
}

TEST(Requeue, AtTheStart) {
  EXPECT_FALSE(refuse_attempt(0));
  EXPECT_FALSE(refuse_attempt(2));
  ASSERT_TRUE(refuse_attempt(3));
  EXPECT_NE(refuse_attempt(3)->find("3 attempts in a row"), std::string::npos);
}

TEST(Requeue, WhenToSave) {
  const struct {
    const char* what;
    SaveTime time;
    std::optional<double> wanted;
  } kTable[] = {
      {"a minute", {.time_limit = 3600}, 60},
      {"twice the longest checkpoint", {.time_limit = 3600, .longest_checkpoint = 100}, 200},
      {"a quarter at the most", {.time_limit = 3600, .longest_checkpoint = 1000}, 900},
      {"a short job", {.time_limit = 60}, 15},
      {"as asked", {.asked = 300, .time_limit = 3600}, 300},
      {"less than the checkpoint takes",
       {.asked = 10, .time_limit = 3600, .longest_checkpoint = 100},
       10},
      {"more than there is", {.asked = 300, .time_limit = 60}, 54},
      {"never", {.asked = 0, .time_limit = 3600}, std::nullopt},
      {"no limit", {}, std::nullopt},
      {"no limit, asked", {.asked = 300}, std::nullopt},
  };
  for (const auto& row : kTable) EXPECT_EQ(save_margin(row.time), row.wanted) << row.what;
}

}  // namespace
}  // namespace af
