// SPDX-License-Identifier: Apache-2.0
// Where this af-launch finds itself: outside Slurm, in a job without a step, or a task of a step;
// and which run, attempt and job it belongs to. Pure: all from the environment.
#pragma once

#include <string>

#include "launcher/environment.h"

namespace af {

enum class LaunchMode {
  kLocal,  // no Slurm: a world on this machine
  kFront,  // a batch script or salloc shell: starts the step and waits for it
  kStep,   // a task of a step: an agent
};

struct LaunchContext {
  LaunchMode mode = LaunchMode::kLocal;
  std::string run_id;  // empty outside Slurm unless AF_RUN_ID is set: the caller invents one
  int attempt = 0;
  std::string job_id;       // empty outside Slurm
  std::string step_id;      // of a step, as Slurm numbers it
  int task = 0;             // of a step
  int tasks = 1;            // of a step; of a job without one: how many workers it was made for
  int cpus_per_task = 0;    // 0: Slurm does not say
  int gpus_per_worker = 0;  // 0: not said
  int max_workers = 0;      // 0: not said
  bool elastic = false;     // a job of one worker that others may join: --af-max-workers over 1
  std::string node_name;    // SLURMD_NODENAME; empty outside Slurm
  std::string submit_directory;  // empty outside Slurm
};

LaunchContext read_launch_context(const Environment& environment);

// A rank that submits a job, or starts af-launch again, passes on what describes its own world.
// Removes that if it belongs to another run; false: this process is itself a rank of this job's
// run, where another world cannot be started.
bool leave_inherited_run(Environment& environment);

}  // namespace af
