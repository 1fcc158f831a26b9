// SPDX-License-Identifier: Apache-2.0
// The hooks that run in slurmstepd, on the nodes: the variables of an af job, the supervisor of its
// batch script, and the sweep of what its processes leave behind.
//
// As root run step_init, step_options_seen, step_task_exit and step_exit. They read the site file,
// change the environment that the job will get, and at the end kill processes of the job's user
// that carry the job's mark. They run no program and write no file (docs/plugin.md, for auditors).
#pragma once

#include "spank/plugin_arguments.h"
#include "spank/slurm_api.h"

namespace af::spank {

// step_init and step_options_seen always return 0: what goes wrong is kept, and step_task_init
// returns it, which fails the job. Returned earlier it drains the node, or the job ends as
// COMPLETED with no output (tried on 22.05; fixed by slurm_spank_init_failure_mode in 25.05).
int step_init(spank_t spank, const PluginArguments& arguments);
int step_options_seen(spank_t spank);
int step_task_init(spank_t spank);  // as the person, in the task's process, before exec
int step_task_exit(spank_t spank);
int step_exit(spank_t spank);

}  // namespace af::spank
