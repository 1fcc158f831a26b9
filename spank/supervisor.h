// SPDX-License-Identifier: Apache-2.0
// The supervisor of an af job's batch script.
//
// slurmstepd signals the pid of the batch task, and when that pid ends it kills all else at once.
// With a bash script in that place, SIGTERM kills bash and the training with it (KillWait is not
// granted under proctrack/cgroup), and a trap waits until the foreground child ends. So the pid
// that slurmstepd knows stays as supervisor, the script runs as its child, and signals go where
// somebody catches them (signal_targets.h).
#pragma once

#include <sys/types.h>

namespace af {

// Call in slurm_spank_task_init of the batch step, in the task's process, after it has become the
// user. Forks; returns only in the child, which goes on to exec the script: 0, or an errno value if
// nothing was forked (the caller then is still the task itself and goes on unsupervised). The
// parent never returns: it waits and ends as the script ended, by exit code or by signal. The
// child: same process group, signal mask and dispositions as before, dies if the supervisor is
// killed. The caller should set SLURM_TASK_PID=getpid() and AF_SUPERVISED=1 in the task's
// environment.
int start_supervisor() noexcept;

}  // namespace af
