// SPDX-License-Identifier: Apache-2.0
// What af-launch exits with when no rank has the last word; docs/exit-codes.md is the full table.
#pragma once

namespace af {

inline constexpr int kExitBadSettings = 120;   // an option, a setting or the job's shape
inline constexpr int kExitLauncherLost = 121;  // an agent, the coordinator or the front went away
inline constexpr int kExitCannotStart = 122;   // run directory, bootstrap, srun, plan
inline constexpr int kExitPreempted = 123;  // told to end (preempted, time limit); ranks have saved
inline constexpr int kExitNoProgress = 124;  // three attempts without progress: not started again
inline constexpr int kExitCannotExecute = 126;
inline constexpr int kExitNotFound = 127;

// As a shell does: a process ended by signal n counts as 128 + n.
inline constexpr int kExitSignalBase = 128;

}  // namespace af
