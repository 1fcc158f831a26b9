// SPDX-License-Identifier: Apache-2.0
// Ends the processes of a step that have escaped (daemons, double forks) when the step is over.
//
// A process left behind holds its GPU and keeps the job COMPLETING for a minute ("Abandoning IO 60
// secs after job shutdown"). It is recognised by the environment it started with.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace af {

// What a process must carry in /proc/PID/environ to be swept; all of it has to match.
struct SweepMark {
  uid_t uid = ~uid_t{0};  // the job's user: the process's real uid; until it is set, nobody's
  uint32_t job_id = 0;    // SLURM_JOB_ID
  std::string run_id;     // AF_RUN_ID; empty: any, but the variable must be there
  std::string node;       // SLURMD_NODENAME: in the sandbox, nodes share one PID namespace
  // SLURM_STEP_ID. Regular step: exactly this number. Batch step (kBatchStep): processes without a
  // step number, that is, of the script itself: background steps keep their time to save.
  uint32_t step_id = 0;
};
inline constexpr uint32_t kBatchStep = 0xfffffffb;
inline constexpr uint32_t kInteractiveStep = 0xfffffffa;

// Pure. `environ` is the content of /proc/PID/environ: NAME=value, each ended by a NUL.
bool carries_mark(std::string_view environ, const SweepMark& mark);

struct SweepResult {
  int killed = 0;
  int left = 0;  // still there at the deadline (uninterruptible sleep)
};

// SIGKILLs every process of this machine that carries the mark, until none is left or `limit` has
// passed. Each is pinned by a pidfd and looked at again before the signal, so a reused pid is never
// hit. Never signals itself or pid 1. Does not throw.
//
// Call it as root in slurm_spank_task_exit when the last local task has ended (slurm_spank_exit
// comes only after slurmstepd has waited for the step's output), and once more in slurm_spank_exit.
SweepResult sweep(const SweepMark& mark, std::chrono::milliseconds limit) noexcept;

}  // namespace af
