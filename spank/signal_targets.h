// SPDX-License-Identifier: Apache-2.0
// To whom the supervisor of a batch script passes a signal: a pure decision over the process tree.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace af {

// One process as /proc shows it. Bit (signal - 1) of a mask stands for that signal.
struct ProcessState {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  uint64_t caught = 0;
  uint64_t ignored = 0;
  uint64_t blocked = 0;      // by the main thread
  std::string program;       // base name of the executable, may be empty
  std::string command_line;  // arguments joined by NUL, as in /proc/PID/cmdline
};

// Who has had the signal from slurmstepd already.
enum class Reached {
  kSupervisor,  // only the pid that slurmstepd knows: ours
  kGroup,       // every member of the script's process group
  kEverybody,   // every process of the tree
};

// A process catches a signal if it has a handler, or blocks it, as programs do that wait for
// signals (signalfd, sigwait). Of shells only handlers count: they block signals for moments around
// a fork.
//
// Processes below and including `script` that are to get `signal`:
// - the script's own process if it catches the signal (a bash trap; bash runs it when its
// foreground
//   child ends), and below it on each path the topmost process that catches it (af-launch, srun,
//   python with a handler). Workers that a program forked are never chosen in its place;
// - if nobody catches it: the script and everything below, for the default action;
// - SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU: everything, as they stop and continue a job.
// Processes that have had it already (`reached`) are left out. `script_group` is the script's
// process group, given apart since the script may have died of the signal already.
std::vector<pid_t> signal_targets(const std::vector<ProcessState>& processes, pid_t script,
                                  pid_t script_group, int signal, Reached reached);

// The topmost catching processes alone, never the script: who may still be saving after the script
// itself has died of the signal.
std::vector<pid_t> catching_descendants(const std::vector<ProcessState>& processes, pid_t script,
                                        int signal);

// The effect: all processes below `root` (root not included) by /proc.
std::vector<ProcessState> processes_below(pid_t root);

}  // namespace af
