// SPDX-License-Identifier: Apache-2.0
// Ending everything that was started below this process, whatever it forked: with
// PR_SET_CHILD_SUBREAPER a daemon that forks twice and calls setsid() becomes our child again.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace af {

// Pure: all processes below `root` (without it), given the parent of each.
std::vector<pid_t> descendants_of(pid_t root, const std::map<pid_t, pid_t>& parents);

// The parent of every process that /proc shows now; zombies are left out.
std::map<pid_t, pid_t> process_parents();

// Orphans of descendants become children of this process from now on.
void become_subreaper();

// Sends KILL to all descendants of this process except `spared` and what is below that, and reaps
// them, until none is left. A process in uninterruptible sleep cannot be ended: after `seconds` the
// pids that remain are given back, for the person to know.
std::vector<pid_t> end_descendants(double seconds, const std::set<pid_t>& spared = {});

}  // namespace af
