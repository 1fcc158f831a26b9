// SPDX-License-Identifier: Apache-2.0
// Why a job was told to end, and until when it has time: from what `scontrol show job` says. Pure.
//
// Slurm sends the same SIGTERM for a preemption, a time limit, scancel and a requeue, and the batch
// step gets none for a preemption with a grace time. The job's record tells them apart
// (docs/signals.md has the table of what was seen).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace af {

// One job as `scontrol show job -o` shows it. Times are seconds since 1970.
struct JobStatus {
  std::string state;   // "RUNNING", "COMPLETING"; a job that is being ended is COMPLETING
  std::string reason;  // "None", "TimeLimit"
  int restarts = 0;
  bool batch = false;                                         // made by sbatch
  bool requeue = false;                                       // may be requeued
  std::optional<int64_t> start_time, end_time, preempt_time;  // none: "Unknown", "None"
  std::optional<int64_t> time_limit;                          // seconds; none: UNLIMITED
};

// The first job in the text, or nothing if there is none. Times as seconds since 1970
// (SLURM_TIME_FORMAT=%s), or in Slurm's own form in this machine's time zone.
std::optional<JobStatus> parse_job_status(const std::string& text);

// KillWait in seconds out of `scontrol show config`.
std::optional<int> parse_kill_wait(const std::string& text);

enum class JobEnd {
  kNone,       // the job goes on
  kPreempted,  // its GPUs are taken back
  kTimeLimit,
  kCancelled,  // scancel, or an end that nobody wants undone
  kRequeued,   // Slurm has it in its queue again: preempted without grace, or on somebody's word
};

struct JobNotice {
  JobEnd end = JobEnd::kNone;
  std::optional<int64_t> deadline;  // when processes are killed, as far as Slurm says
  bool final = false;               // Slurm is ending it: KillWait runs
  bool operator==(const JobNotice&) const = default;
};

// `attempt`: SLURM_RESTART_COUNT of the asking process. `kill_wait` and `now` in seconds.
JobNotice job_notice(const JobStatus& status, int attempt, int kill_wait, int64_t now);

// "preempted", "time limit", "cancelled", "requeued by Slurm"; "" for kNone.
std::string to_text(JobEnd end);

// "preempted, the job ends by 14:03:10 (in 12 s)", in this machine's time zone.
std::string notice_text(const JobNotice& notice, int64_t now);

}  // namespace af
