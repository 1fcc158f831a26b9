// SPDX-License-Identifier: Apache-2.0
// The supervisor with real scripts: what it passes on, and how it ends.
#include "spank/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace af {
namespace {

// `bash -c script` under a supervisor of its own process group, as slurmstepd starts a batch task.
// What it prints comes through a pipe.
class Task {
 public:
  explicit Task(const std::string& script) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::dup2(ends[1], STDOUT_FILENO);
      if (start_supervisor() != 0) ::_exit(99);
      ::execl("/bin/bash", "bash", "-c", script.c_str(), nullptr);
      ::_exit(98);
    }
    ::close(ends[1]);
    output_ = ends[0];
  }
  ~Task() {
    if (!ended_) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_);
  }
  pid_t pid() const { return pid_; }

  // The next line; "" at the end of output, "?" if none comes in 10 s.
  std::string line() {
    std::string text;
    for (;;) {
      pollfd entry{output_, POLLIN, 0};
      char byte = 0;
      if (::poll(&entry, 1, 10000) == 0) return "?";
      if (::read(output_, &byte, 1) != 1 || byte == '\n') return text;
      text += byte;
    }
  }
  int status() {
    int result = -1;
    ::waitpid(pid_, &result, 0);
    ended_ = true;
    return result;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  bool ended_ = false;
};

// A program with a handler that works on, in the foreground of the script. A handler does not
// print(): the signal may come within the program's own print(), whose buffer is locked then. And
// nothing sleeps for long: Python runs a handler for a signal that came just before a sleep behind
// it.
const char* const kHandler =
    "/usr/bin/python3 -c 'import os,signal,time,sys\n"
    "def h(s,f):\n"
    "  os.write(1,b\"got %d\\n\"%s)\n"
    "  if s==15: sys.exit(5)\n"
    "for s in (10,15): signal.signal(s,h)\n"
    "print(\"ready\",flush=True)\n"
    "while True: time.sleep(0.05)'\n";

TEST(Supervisor, PassesOnTheExitCode) {
  EXPECT_EQ(WEXITSTATUS(Task("exit 7").status()), 7);
  // Over before the supervisor is ready, or after: both happen in so many.
  for (int i = 0; i < 30; ++i) EXPECT_EQ(WEXITSTATUS(Task("exit 3").status()), 3);
}

TEST(Supervisor, EndsByTheSignalThatEndedTheScript) {
  const int status = Task("kill -USR2 $$").status();
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGUSR2);
}

TEST(Supervisor, SignalReachesTheProgramInTheForegroundOnce) {
  Task task(std::string(kHandler) + "echo code $?; exit 3");
  ASSERT_EQ(task.line(), "ready");
  ::kill(task.pid(), SIGUSR1);
  EXPECT_EQ(task.line(), "got 10");
  ::kill(task.pid(), SIGTERM);
  EXPECT_EQ(task.line(), "got 15");
  EXPECT_EQ(task.line(), "code 5");
  EXPECT_EQ(WEXITSTATUS(task.status()), 3);
}

TEST(Supervisor, SignalToTheGroupIsNotDoubled) {
  Task task(std::string("trap : USR1\n") + kHandler + "echo code $?");
  ASSERT_EQ(task.line(), "ready");
  ::kill(-task.pid(), SIGUSR1);  // as scancel --full
  EXPECT_EQ(task.line(), "got 10");
  ::kill(task.pid(), SIGTERM);
  EXPECT_EQ(task.line(), "got 15");  // and not 10 once more
  EXPECT_EQ(task.line(), "code 5");
  EXPECT_EQ(task.status(), 0);
}

TEST(Supervisor, TrapOfTheScriptRuns) {
  Task task("trap 'echo trapped; exit 4' TERM; echo ready; while :; do sleep 0.05; done");
  ASSERT_EQ(task.line(), "ready");
  ::kill(task.pid(), SIGTERM);
  EXPECT_EQ(task.line(), "trapped");
  EXPECT_EQ(WEXITSTATUS(task.status()), 4);
}

TEST(Supervisor, NobodyCatchesAndAllDie) {
  Task task("echo ready; sleep 60; echo never");
  ASSERT_EQ(task.line(), "ready");
  ::kill(task.pid(), SIGTERM);
  const int status = task.status();
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_EQ(task.line(), "");  // nobody holds the output any more, the sleep included
}

TEST(Supervisor, WaitsForWhoIsSavingWhenTheScriptDiedOfTheSignal) {
  // proctrack/linuxproc: slurmstepd signals the script itself as well.
  Task task(
      "/usr/bin/python3 -c 'import os,signal,time,sys\n"
      "def h(s,f):\n"
      "  time.sleep(0.5); os.write(1,b\"saved\\n\"); sys.exit(0)\n"
      "signal.signal(15,h)\n"
      "print(\"ready\",flush=True)\n"
      "while True: time.sleep(0.05)'\necho never");
  ASSERT_EQ(task.line(), "ready");
  ::kill(-task.pid(), SIGTERM);
  const int status = task.status();
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_EQ(task.line(), "saved");
}

TEST(Supervisor, DoesNotHoldTheOutputAndDiesWithItsScript) {
  Task task("exec >/dev/null; sleep 60");
  EXPECT_EQ(task.line(), "");  // the script closed it, and the supervisor has no copy
  ::kill(task.pid(), SIGKILL);
  task.status();
}

}  // namespace
}  // namespace af
