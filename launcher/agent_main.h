// SPDX-License-Identifier: Apache-2.0
// One agent from its first to its last line: what it knows, the bootstrap, the plan, its ranks; the
// agent of task 0 (outside Slurm: the only one) is the coordinator too.
#pragma once

#include "launcher/environment.h"
#include "launcher/launch_context.h"
#include "launcher/options.h"

namespace af {

// `control`: the keeper's pipe. Gives the exit code; prints its own failures in one line.
int run_agent(const Options& options, const LaunchContext& context, const Environment& environment,
              int control);

}  // namespace af
