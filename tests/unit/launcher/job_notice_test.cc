// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_notice.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "launcher/job_watch.h"

namespace af {
namespace {

// As `SLURM_TIME_FORMAT=%s scontrol show job -o` of Slurm 22.05 has printed it in the sandbox, cut
// in the uninteresting middle; only what follows the state differs.
std::string record(const std::string& from_state, const std::string& name = "train.sh") {
  return "JobId=17 JobName=" + name +
         " UserId=ada(3001) GroupId=ada(3001) MCS_label=N/A Priority=4294901743 Nice=0 "
         "Account=(null) QOS=(null) " +
         from_state +
         " SuspendTime=None SecsPreSuspend=0 LastSchedEval=1796047488 Scheduler=Main "
         "Partition=spare AllocNode:Sid=login:0 ReqNodeList=n2 ExcNodeList=(null) NodeList=n2 "
         "BatchHost=n2 NumNodes=1 NumCPUs=64 NumTasks=1 Command=/work/users/ada/p.sh "
         "JobState=FAILED WorkDir=/work/users/ada StdErr=/work/users/ada/slurm-17.out Power= \n";
}

const char* const kRuns =
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1796047488 "
    "EligibleTime=1796047488 AccrueTime=1796047488 StartTime=1796047488 EndTime=1796051088 "
    "Deadline=N/A PreemptEligibleTime=1796047488 PreemptTime=None";
const char* const kGrace =
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:04 TimeLimit=01:00:00 TimeMin=N/A StartTime=1796047488 "
    "EndTime=1796047495 Deadline=N/A PreemptEligibleTime=1796047488 PreemptTime=1796047492";
// PreemptMode=CANCEL, when the grace time is over or there was none.
const char* const kPreemptedForGood =
    "JobState=COMPLETING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:04 TimeLimit=01:00:00 TimeMin=N/A StartTime=1796047488 "
    "EndTime=1796047492 Deadline=N/A PreemptEligibleTime=1796047488 PreemptTime=1796047492";
// PreemptMode=REQUEUE at that point, and `scontrol requeue`.
const char* const kBackInTheQueue =
    "JobState=COMPLETING Reason=None Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A StartTime=1796047492 "
    "EndTime=1796051092 Deadline=N/A";
const char* const kCancelled =
    "JobState=COMPLETING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:04 TimeLimit=01:00:00 TimeMin=N/A StartTime=1796047488 "
    "EndTime=1796047492 Deadline=N/A";
const char* const kTimeIsOver =
    "JobState=COMPLETING Reason=TimeLimit Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
    "Reboot=0 ExitCode=0:0 RunTime=00:01:04 TimeLimit=00:01:00 TimeMin=N/A StartTime=1796047428 "
    "EndTime=1796047492 Deadline=N/A";

constexpr int64_t kNow = 1796047493;
constexpr int kKillWait = 30;

TEST(JobNotice, WhatARecordMeans) {
  const struct {
    const char* what;
    const char* record;
    int attempt;
    JobNotice wanted;
  } kTable[] = {
      {"runs", kRuns, 0, {}},
      {"grace", kGrace, 0, {.end = JobEnd::kPreempted, .deadline = 1796047495}},
      {"preempted for good",
       kPreemptedForGood,
       0,
       {.end = JobEnd::kPreempted, .deadline = 1796047522, .final = true}},
      {"cancelled",
       kCancelled,
       0,
       {.end = JobEnd::kCancelled, .deadline = 1796047522, .final = true}},
      {"time limit",
       kTimeIsOver,
       0,
       {.end = JobEnd::kTimeLimit, .deadline = 1796047522, .final = true}},
      {"in the queue again",
       kBackInTheQueue,
       0,
       {.end = JobEnd::kRequeued, .deadline = kNow + kKillWait, .final = true}},
      {"second attempt is cancelled",
       kBackInTheQueue,
       1,
       {.end = JobEnd::kCancelled, .deadline = 1796051122, .final = true}},
  };
  for (const auto& row : kTable) {
    const auto status = parse_job_status(record(row.record));
    ASSERT_TRUE(status) << row.what;
    EXPECT_EQ(job_notice(*status, row.attempt, kKillWait, kNow), row.wanted) << row.what;
  }
}

TEST(JobNotice, FieldsOfARecord) {
  const auto status = parse_job_status(record(kGrace));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->state, "RUNNING");
  EXPECT_EQ(status->reason, "None");
  EXPECT_EQ(status->restarts, 0);
  EXPECT_TRUE(status->batch);
  EXPECT_TRUE(status->requeue);
  EXPECT_EQ(status->start_time, 1796047488);
  EXPECT_EQ(status->end_time, 1796047495);
  EXPECT_EQ(status->preempt_time, 1796047492);
  EXPECT_EQ(status->time_limit, 3600);
}

TEST(JobNotice, OtherJobs) {
  const auto salloc = parse_job_status(
      record("JobState=RUNNING Reason=None Dependency=(null) Requeue=0 Restarts=0 BatchFlag=0 "
             "TimeLimit=UNLIMITED StartTime=1796047488 EndTime=Unknown"));
  ASSERT_TRUE(salloc);
  EXPECT_FALSE(salloc->batch);
  EXPECT_FALSE(salloc->requeue);
  EXPECT_FALSE(salloc->end_time);
  EXPECT_FALSE(salloc->time_limit);
  EXPECT_FALSE(salloc->preempt_time);
  const auto days = parse_job_status(record("JobState=RUNNING TimeLimit=2-01:02:03"));
  ASSERT_TRUE(days);
  EXPECT_EQ(days->time_limit, ((2 * 24 + 1) * 60 + 2) * 60 + 3);
}

TEST(JobNotice, AJobsNameIsNoState) {
  const auto status =
      parse_job_status(record(kRuns, "x JobState=CANCELLED Restarts=7 PreemptTime=1"));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->state, "RUNNING");
  EXPECT_EQ(status->restarts, 0);
  EXPECT_FALSE(status->preempt_time);
}

TEST(JobNotice, TimesAsSlurmUsuallyPrintsThem) {
  ::setenv("TZ", "America/Indiana/Indianapolis", 1);
  const auto status = parse_job_status(record("JobState=RUNNING EndTime=2026-11-30T09:02:49"));
  EXPECT_EQ(status->end_time, 1796047369);
  EXPECT_EQ(notice_text({.end = JobEnd::kPreempted, .deadline = 1796047369}, 1796047357),
            "preempted, the job ends by 09:02:49 (in 12 s)");
  ::unsetenv("TZ");
}

TEST(JobNotice, NoRecord) {
  EXPECT_FALSE(parse_job_status(""));
  EXPECT_FALSE(parse_job_status("slurm_load_jobs error: Invalid job id specified\n"));
  EXPECT_FALSE(parse_job_status("JobId=17 JobName=x\n"));
}

TEST(JobNotice, TextWithoutADeadline) {
  EXPECT_EQ(notice_text({.end = JobEnd::kTimeLimit}, 5), "time limit, the job ends");
  EXPECT_EQ(notice_text({.end = JobEnd::kCancelled, .deadline = 3}, 5).substr(0, 9), "cancelled");
  EXPECT_NE(notice_text({.end = JobEnd::kCancelled, .deadline = 3}, 5).find("(in 0 s)"),
            std::string::npos);
}

TEST(JobNotice, KillWait) {
  EXPECT_EQ(parse_kill_wait("KeepAliveTime           = SYSTEM_DEFAULT\n"
                            "KillOnBadExit           = 0\nKillWait                = 5 sec\n"),
            5);
  EXPECT_FALSE(parse_kill_wait("KillOnBadExit = 0\n"));
  EXPECT_FALSE(parse_kill_wait(""));
}

TEST(JobNotice, ScancelWithinTheGraceTimeIsACancel) {
  const JobNotice grace = {.end = JobEnd::kPreempted, .deadline = 1796047495};
  JobStatus status = *parse_job_status(record(kPreemptedForGood));
  const JobNotice next = job_notice(status, 0, kKillWait, kNow);
  EXPECT_EQ(later_notice(grace, next, status).end, JobEnd::kCancelled);
  // Its grace is over: what was announced.
  status.end_time = 1796047495;
  EXPECT_EQ(later_notice(grace, next, status).end, JobEnd::kPreempted);
  // Without a grace time nothing was known before.
  status.end_time = 1796047492;
  EXPECT_EQ(later_notice({}, next, status).end, JobEnd::kPreempted);
}

TEST(JobNotice, WhatIsKnownStays) {
  const JobStatus runs = *parse_job_status(record(kRuns));
  const JobNotice due = {.end = JobEnd::kTimeLimit, .deadline = 1796051088};
  EXPECT_EQ(later_notice(due, {}, runs), due);
  const JobNotice cancelled = {.end = JobEnd::kCancelled, .deadline = 1, .final = true};
  EXPECT_EQ(later_notice(due, cancelled, runs).end, JobEnd::kCancelled);
}

}  // namespace
}  // namespace af
