// SPDX-License-Identifier: Apache-2.0
// The front: af-launch in a batch script or a salloc shell. It starts one step with an agent per
// worker, is the hub of their bootstrap, passes signals on to the coordinator, and exits with the
// code that the coordinator gives.
#pragma once

#include "launcher/environment.h"
#include "launcher/launch_context.h"
#include "launcher/options.h"

namespace af {

// Gives the exit code; prints its own failures in one line. Throws Error before the step starts.
int run_front(const Options& options, const LaunchContext& context, const Environment& environment);

}  // namespace af
