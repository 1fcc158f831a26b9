// SPDX-License-Identifier: Apache-2.0
#include "spank/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "spank/signal_targets.h"

namespace af {
namespace {

constexpr int kNanoseconds = 1000 * 1000;  // in a millisecond

void sleep_milliseconds(long milliseconds) {
  timespec time{0, milliseconds * kNanoseconds};
  ::nanosleep(&time, nullptr);
}

// A process that blocks every signal and never takes one: what is sent to it stays visible as
// pending in /proc. slurmstepd signals one pid, a process group or a whole tree, by the kind of
// scancel and the proctrack plugin, and does not say which; the canaries beside the script show it.
class Canary {
 public:
  explicit Canary(bool own_group) : own_group_(own_group) { start(); }

  bool has_had(int signal) const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
    std::string line;
    while (std::getline(file, line))
      if (line.rfind("ShdPnd:", 0) == 0)
        return (std::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1) != 0;
    return false;
  }

  // Takes this one signal off it, so that the next of its kind shows again.
  void forget(int signal) const {
    const char order = static_cast<char>(signal);
    if (::write(orders_, &order, 1) == 1) sleep_milliseconds(1);
  }

  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(orders_);
    pid_ = -1;
  }

  pid_t pid() const { return pid_; }

 private:
  void start() {
    int ends[2] = {-1, -1};
    const pid_t parent = ::getpid();
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
    pid_ = ::fork();
    if (pid_ != 0) {
      ::close(ends[0]);
      orders_ = ends[1];
      if (own_group_ && pid_ > 0) ::setpgid(pid_, pid_);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::prctl(PR_SET_NAME, "af-canary");
    if (own_group_) ::setpgid(0, 0);
    if (::getppid() != parent) ::_exit(0);
    ::close(ends[1]);
    pollfd entry{ends[0], POLLIN, 0};
    for (char order = 0;;) {
      ::poll(&entry, 1, -1);
      if (::read(ends[0], &order, 1) == 0) ::_exit(0);
      sigset_t only;
      ::sigemptyset(&only);
      ::sigaddset(&only, order);
      const timespec now{0, 0};
      ::sigtimedwait(&only, nullptr, &now);
    }
  }

  int orders_ = -1;
  bool own_group_;
  pid_t pid_ = -1;
};

class Supervisor {
 public:
  explicit Supervisor(pid_t script) : script_(script) {}

  [[noreturn]] void run() {
    sigset_t all;
    ::sigfillset(&all);
    // A script that is over already: its SIGCHLD was thrown away when the dispositions were set.
    reap();
    if (script_ended_) finish();
    for (;;) {
      siginfo_t info{};
      // Whoever is saving may not be our child, and its end then brings no SIGCHLD.
      const timespec second{1, 0};
      const int signal =
          script_ended_ ? ::sigtimedwait(&all, &info, &second) : ::sigwaitinfo(&all, &info);
      if (signal == SIGCHLD)
        reap();
      else if (signal > 0)
        pass_on(signal);
      if (script_ended_ && !somebody_is_saving()) finish();
    }
  }

 private:
  // Whatever ended: the script, or a daemon of its that came to us (we are its subreaper).
  void reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != script_) continue;
      script_ended_ = true;
      status_ = status;
    }
  }

  void pass_on(int signal) {
    // The kernel delivered to us while slurmstepd may still be going through its list of pids.
    sleep_milliseconds(50);
    take_again(signal);
    Reached reached = Reached::kSupervisor;
    if (other_group_.has_had(signal))
      reached = Reached::kEverybody;
    else if (same_group_.has_had(signal))
      reached = Reached::kGroup;

    const std::vector<ProcessState> processes = script_and_below();
    for (const pid_t pid : signal_targets(processes, script_, ::getpgrp(), signal, reached))
      ::kill(pid, signal);
    if (signal != SIGCONT && signal != SIGTSTP) {  // SIGCONT goes before each SIGTERM of Slurm's
      last_signal_ = signal;
      saving_ = catching_descendants(processes, script_, signal);
    }
    same_group_.forget(signal);
    other_group_.forget(signal);
  }

  // `scancel --full` sends to the pid and to its group: that is one signal to whoever it reaches.
  static void take_again(int signal) {
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, signal);
    const timespec now{0, 0};
    ::sigtimedwait(&only, nullptr, &now);
  }

  // slurmstepd kills all else the moment we end. If the script itself died of the signal (a shell
  // without a trap, which with proctrack/linuxproc gets it from slurmstepd directly), those who
  // caught it keep their KillWait.
  bool somebody_is_saving() const {
    if (!WIFSIGNALED(status_) || WTERMSIG(status_) != last_signal_) return false;
    const std::vector<ProcessState> alive = processes_below(::getpid());
    return std::any_of(alive.begin(), alive.end(), [&](const ProcessState& process) {
      return std::count(saving_.begin(), saving_.end(), process.pid) != 0;
    });
  }

  std::vector<ProcessState> script_and_below() const {
    std::vector<ProcessState> processes = processes_below(::getpid());
    std::erase_if(processes, [&](const ProcessState& process) {
      return process.pid == same_group_.pid() || process.pid == other_group_.pid();
    });
    // Daemons whose parent has gone are ours now: count them to the script.
    for (ProcessState& process : processes)
      if (process.parent == ::getpid() && process.pid != script_) process.parent = script_;
    return processes;
  }

  [[noreturn]] void finish() {
    same_group_.stop();
    other_group_.stop();
    if (WIFEXITED(status_)) ::_exit(WEXITSTATUS(status_));
    // By the same signal, so that Slurm shows the job's end as it was ("0:15").
    const int signal = WTERMSIG(status_);
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::signal(signal, SIG_DFL);
    ::kill(::getpid(), signal);
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, signal);
    ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
    ::_exit(128 + signal);
  }

  pid_t script_;
  bool script_ended_ = false;
  int status_ = 0;
  int last_signal_ = 0;
  std::vector<pid_t> saving_;
  Canary same_group_{false};
  Canary other_group_{true};
};

// The job's output file, slurmstepd's log and its sockets would otherwise stay open as long as we
// do. Descriptors 0 to 2 stay in use, so that nothing opened later becomes standard output.
void drop_descriptors() {
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  if (::syscall(SYS_close_range, 3U, ~0U, 0U) != 0)
    for (int fd = 3; fd < 65536; ++fd) ::close(fd);
}

}  // namespace

int start_supervisor() noexcept {
  sigset_t all, before;
  ::sigfillset(&all);
  // Before the fork, so that no signal to this pid is lost or kills us before we wait for it.
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t supervisor = ::getpid();
  const pid_t script = ::fork();
  if (script < 0) {
    const int error = errno;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return error;
  }
  if (script == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != supervisor) ::_exit(1);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return 0;
  }
  ::prctl(PR_SET_NAME, "af-supervisor");
  // We are a copy of slurmstepd that never execs: what it had in memory is not the user's to read.
  ::prctl(PR_SET_DUMPABLE, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Ignored signals are discarded even while blocked: sigwaitinfo would not see them.
  for (int signal = 1; signal < NSIG; ++signal)
    if (signal != SIGKILL && signal != SIGSTOP) ::signal(signal, SIG_DFL);
  drop_descriptors();
  try {
    Supervisor(script).run();
  } catch (...) {
    // No memory: die as the batch task would have died, and the job ends.
    ::_exit(1);
  }
}

}  // namespace af
