// SPDX-License-Identifier: Apache-2.0
// How the agent hands a signal to a rank's main process exactly once, beside slurmstepd, which may
// send the same signal to the same process at the same time (the shield drops that one).
#pragma once

#include <sys/types.h>

namespace af {

// Sends `signal` to the process. Linux keeps one pending instance of a signal, with the sender of
// the first: a plain kill() right after slurmstepd's would vanish in it and the shield would drop
// both. A signal to the main thread (tgkill) is pending apart from it, so that is used unless that
// thread blocks the signal (programs that wait for signals in another thread); then kill(), once
// the pending one has been taken (waits at most 0.2 s). False: the process is gone or not ours
// (errno). `pid` must be a child that has not been reaped, or its number may belong to somebody
// else.
bool deliver_signal(pid_t pid, int signal);

// The slurmstepd above this process (for AF_SHIELD_STEPD_PID): the nearest ancestor whose name is
// slurmstepd. 0: none that is visible, e.g. in a PID namespace of the job's own.
pid_t find_slurmstepd();

}  // namespace af
