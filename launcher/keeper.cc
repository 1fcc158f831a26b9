// SPDX-License-Identifier: Apache-2.0
#include "launcher/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/error.h"
#include "common/unique_fd.h"
#include "launcher/descendants.h"
#include "launcher/exec_parts.h"
#include "launcher/exit_codes.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

constexpr double kEndWithin = 5;  // seconds, for processes that the kernel cannot end at once

// The launcher's wait status once it has ended; everything else that was reaped does not matter.
bool reaped(pid_t launcher, int* status) {
  int one = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &one, WNOHANG)) > 0) {
    if (pid != launcher) continue;
    *status = one;
    return true;
  }
  return false;
}

}  // namespace

int run_under_keeper(const std::function<int(int control)>& launcher) {
  block_watched_signals();
  become_subreaper();
  auto [read_end, write_end] = make_pipe();
  const pid_t pid = ::fork();
  if (pid < 0) throw errno_error("cannot fork");
  if (pid == 0) {
    write_end.reset();
    return launcher(read_end.release());
  }
  read_end.reset();

  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : kForwardedSignals) sigaddset(&watched, signal);
  int status = 0;
  while (!reaped(pid, &status)) {
    siginfo_t info;
    const int signal = ::sigwaitinfo(&watched, &info);
    if (signal <= 0 || signal == SIGCHLD) continue;
    const auto byte = static_cast<unsigned char>(signal);
    // The pipe holds thousands of these; if it is full, the launcher is stuck and this one is lost.
    if (::write(write_end.get(), &byte, 1) < 0 && errno != EINTR) continue;
  }
  end_descendants(kEndWithin);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitSignalBase + WTERMSIG(status);
}

}  // namespace af
