// SPDX-License-Identifier: Apache-2.0
// The keeper: a tiny process around the launcher proper, so that even `kill -9` of either one
// leaves nothing behind.
//
// It is the process that Slurm (or the shell) knows. It forks the launcher, passes signals on to it
// through a pipe, and when the launcher is gone, however, it ends every process below itself; as
// child subreaper it gets the orphans back. If the keeper dies, the launcher sees the pipe closed
// and ends its ranks by itself.
#pragma once

#include <functional>

namespace af {

// Runs `launcher` in a child; `control` is the read end of the pipe: one byte per signal, end of
// file when the keeper has died. Gives the code to exit with. Blocks the watched signals for both.
// Throws Error if it cannot fork.
int run_under_keeper(const std::function<int(int control)>& launcher);

}  // namespace af
