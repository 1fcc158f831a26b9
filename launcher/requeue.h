// SPDX-License-Identifier: Apache-2.0
// What follows when a run ends because its job is taken away: start it again, or not, and what is
// said. And when it is time to save before the job's time limit. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/job_notice.h"

namespace af {

// So many attempts in a row without a report or a checkpoint, and the job is not started again.
inline constexpr int kMostFruitlessAttempts = 3;

struct RunEnd {
  JobEnd end = JobEnd::kNone;
  int code = 0;            // what the ranks' ends come to
  bool finished = false;   // the program says that it had done all its work
  bool own_fault = false;  // it failed before it was told to stop
  int fruitless = 0;       // attempts in a row without progress, this one included
  bool batch = true;       // Slurm requeues batch jobs only
  bool requeue = true;     // the job was submitted so that it may be requeued
  std::string job;         // for scontrol and people: "1230_4"
  int attempt = 0;
};

struct RunVerdict {
  bool requeue = false;
  bool fruitless = false;  // stopped for want of progress
  int code = 0;            // for af-launch to exit with
  std::string text;        // for the person; empty: nothing to say
};

RunVerdict judge(const RunEnd& end);

// At the start: whether enough attempts have gone by. `fruitless`: those before this one.
std::optional<std::string> refuse_attempt(int fruitless);

// How long before the end of the time limit ranks are told to save. All in seconds.
struct SaveTime {
  std::optional<double> asked;  // --save-before; 0: not at all
  double time_limit = 0;
  double longest_checkpoint = 0;  // of the run so far, as the program reported it; 0: none yet
};
// None: no order to save ahead of Slurm's own TERM.
std::optional<double> save_margin(const SaveTime& time);

}  // namespace af
