// SPDX-License-Identifier: Apache-2.0
// Preloaded into the srun that af-launch starts in a batch script, so that srun hears signals from
// af-launch alone.
//
// With proctrack/linuxproc, slurmstepd signals every process of the batch step, srun included. srun
// answers a TERM by killing the step with SIGKILL at once (step_launch.c: abort_action_taken):
// ranks that are saving lose the KillWait seconds that Slurm promised. USR1 and USR2 it forwards to
// the tasks, which get them a second time then. srun waits for signals with sigwait(), so that is
// where those of other senders are dropped.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int meant_for_srun(int number, const siginfo_t* info) {
  if (number == SIGCHLD || number == SIGCONT || number == SIGALRM || number == SIGPIPE) return 1;
  const char* front = getenv("AF_SRUN_FRONT_PID");
  if (front == NULL) return 1;
  // Also what the kernel sends at the front's death (PR_SET_PDEATHSIG): its sender is the front.
  return info->si_pid == (pid_t)atoi(front) || info->si_pid == getpid();
}

__attribute__((visibility("default"))) int sigwait(const sigset_t* set, int* number) {
  for (;;) {
    siginfo_t info;
    const int got = sigwaitinfo(set, &info);
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (!meant_for_srun(got, &info)) continue;
    *number = got;
    return 0;
  }
}
