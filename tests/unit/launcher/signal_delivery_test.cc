// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_delivery.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace af {
namespace {

// A child that blocks SIGUSR1, waits for the word on a pipe, and then counts how many it takes.
struct Receiver {
  pid_t pid = -1;
  int go = -1;
  Receiver() {
    int ends[2];
    if (::pipe(ends) != 0) return;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    pid = ::fork();
    if (pid == 0) {
      char byte;
      ::close(ends[1]);
      while (::read(ends[0], &byte, 1) > 0) {
      }
      int count = 0;
      const timespec now{0, 0};
      while (::sigtimedwait(&set, nullptr, &now) == SIGUSR1) ++count;
      ::_exit(count);
    }
    ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
    ::close(ends[0]);
    go = ends[1];
  }
  int count() const {
    ::close(go);
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
  }
};

TEST(DeliverSignal, ReachesAProcessThatBlocksIt) {
  Receiver receiver;
  EXPECT_TRUE(deliver_signal(receiver.pid, SIGUSR1));
  EXPECT_EQ(receiver.count(), 1);
}

volatile sig_atomic_t handled = 0;

TEST(DeliverSignal, IsNotLostBehindAPendingOneOfSlurmstepd) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    struct sigaction action {};
    action.sa_handler = [](int) { handled = handled + 1; };
    sigaddset(&action.sa_mask, SIGUSR1);
    ::sigaction(SIGUSR1, &action, nullptr);
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "r", 1);
    while (handled < 2) ::usleep(1000);
    ::_exit(static_cast<int>(handled));
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  // While it is stopped, both wait: a second kill() would vanish in the first.
  ::kill(pid, SIGSTOP);
  int status = 0;
  ::waitpid(pid, &status, WUNTRACED);
  ::kill(pid, SIGUSR1);
  EXPECT_TRUE(deliver_signal(pid, SIGUSR1));
  ::kill(pid, SIGCONT);
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 2);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(DeliverSignal, SaysThatTheProcessIsGone) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(deliver_signal(pid, SIGUSR1));
}

TEST(FindSlurmstepd, IsTheNearestAncestorOfThatName) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_NAME, "slurmstepd");
    const pid_t daemon = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_NAME, "my) shell (");
      const pid_t grandchild = ::fork();
      if (grandchild == 0) {
        ::prctl(PR_SET_NAME, "rank");
        ::_exit(find_slurmstepd() == daemon ? 0 : 1);
      }
      int status = 0;
      ::waitpid(grandchild, &status, 0);
      ::_exit(WEXITSTATUS(status));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(find_slurmstepd(), 0);
}

}  // namespace
}  // namespace af
