// SPDX-License-Identifier: Apache-2.0
// The shield in real processes: a stranger's signals act as ever, slurmstepd's do nothing
// (cases B14, B15).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

std::string built(const char* name) {
  // build/tests/unit/shield -> build
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path().parent_path().parent_path() / name).string();
}

// A process that is called slurmstepd and sends the signals it is told to.
class Stepd {
 public:
  Stepd() {
    int orders[2], answers[2];
    if (::pipe2(orders, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_NAME, "slurmstepd");
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(orders[1]);
      pid_t order[2];
      [[maybe_unused]] ssize_t n = ::write(answers[1], "r", 1);
      while (::read(orders[0], order, sizeof(order)) == sizeof(order)) {
        const char ok = ::kill(order[0], order[1]) == 0 ? 'y' : 'n';
        n = ::write(answers[1], &ok, 1);
      }
      ::_exit(0);
    }
    ::close(orders[0]);
    ::close(answers[1]);
    orders_ = orders[1];
    answers_ = answers[0];
    answer();
  }
  ~Stepd() {
    ::close(orders_);
    ::close(answers_);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // Sends, and waits until it has been taken (it is no longer pending), so that nothing that comes
  // later can be merged with it.
  void send(pid_t to, int signal) {
    const pid_t order[2] = {to, signal};
    ASSERT_EQ(::write(orders_, order, sizeof(order)), static_cast<ssize_t>(sizeof(order)));
    ASSERT_EQ(answer(), 'y');
    const uint64_t bit = uint64_t{1} << (signal - 1);
    for (int i = 0; i < 2000 && (mask(to, "ShdPnd:") & bit) != 0; ++i) ::usleep(1000);
  }

 private:
  static uint64_t mask(pid_t pid, const std::string& name) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    std::string line;
    while (std::getline(file, line))
      if (line.rfind("State:\tZ", 0) == 0)
        return 0;  // died of it: a zombie takes nothing any more
      else if (line.rfind(name, 0) == 0)
        return std::stoull(line.substr(name.size()), nullptr, 16);
    return 0;
  }
  char answer() {
    char byte = '?';
    [[maybe_unused]] const ssize_t n = ::read(answers_, &byte, 1);
    return byte;
  }
  pid_t pid_ = -1;
  int orders_ = -1, answers_ = -1;
};

pid_t child_of(pid_t pid) {
  const std::string number = std::to_string(pid);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

// A program under the shield, its input and its output.
class Shielded {
 public:
  Shielded(const Stepd& stepd, std::vector<const char*> words, bool with_shield = true) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    const std::string library = built("lib/libaf_shield.so");
    const std::string number = std::to_string(stepd.pid());
    const std::string program = built("tests/shield_program");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setpgid(0, 0);
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      if (with_shield) ::setenv("LD_PRELOAD", library.c_str(), 1);
      ::setenv("AF_SHIELD_STEPD_PID", number.c_str(), 1);
      if (words.size() == 1) words.insert(words.begin(), program.c_str());
      words.push_back(nullptr);
      ::execv(words[0], const_cast<char* const*>(words.data()));
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    input_ = in[1];
    output_ = out[0];
  }
  ~Shielded() {
    ::kill(-pid_, SIGKILL);  // what it has started as well; nothing is left if it is empty
    if (!ended_) ::waitpid(pid_, nullptr, 0);
    ::close(input_);
    ::close(output_);
  }
  pid_t pid() const { return pid_; }
  void type(const char* text) {
    [[maybe_unused]] const ssize_t n = ::write(input_, text, std::char_traits<char>::length(text));
  }
  std::string line() {
    std::string text;
    for (;;) {
      pollfd entry{output_, POLLIN, 0};
      char byte = 0;
      if (::poll(&entry, 1, 20000) == 0) return "?";
      if (::read(output_, &byte, 1) != 1) return text + "$";  // the end
      if (byte == '\n') return text;
      text += byte;
    }
  }
  int status() {
    int result = -1;
    for (int i = 0; i < 10000 && !ended_; ++i) {
      ended_ = ::waitpid(pid_, &result, WNOHANG) == pid_;
      if (!ended_) ::usleep(1000);
    }
    return result;  // -1 is no status of a process: it has not ended
  }
  void expect_killed_by(int signal) {
    const int result = status();
    ASSERT_TRUE(result != -1 && WIFSIGNALED(result)) << result;
    EXPECT_EQ(WTERMSIG(result), signal);
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1, output_ = -1;
  bool ended_ = false;
};

TEST(Shield, WithoutItTheProgramDiesOfSlurmstepd) {  // or the other tests prove nothing
  Stepd stepd;
  Shielded program(stepd, {"default"}, false);
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  program.expect_killed_by(SIGTERM);
}

TEST(Shield, DefaultActionIsForOthersOnly) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) {
    Stepd stepd;
    Shielded program(stepd, {"default"});
    ASSERT_EQ(program.line(), "ready");
    for (const int each : {SIGTERM, SIGUSR1, SIGUSR2}) stepd.send(program.pid(), each);
    ::kill(program.pid(), signal);
    program.expect_killed_by(signal);
  }
}

TEST(Shield, OtherSignalsOfSlurmstepdAct) {
  Stepd stepd;
  Shielded program(stepd, {"default"});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGHUP);
  program.expect_killed_by(SIGHUP);
}

TEST(Shield, HandlerRunsOncePerSignalOfOthers) {
  Stepd stepd;
  Shielded program(stepd, {"handler"});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.line(), "got from parent");
  stepd.send(program.pid(), SIGUSR1);
  ::kill(program.pid(), SIGUSR1);
  EXPECT_EQ(program.line(), "got USR");
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.line(), "got from parent");
}

TEST(Shield, OneShotHandlerIsNotUsedUpBySlurmstepd) {
  Stepd stepd;
  Shielded program(stepd, {"once"});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.line(), "got TERM");
  stepd.send(program.pid(), SIGTERM);
  ::kill(program.pid(), SIGTERM);
  program.expect_killed_by(SIGTERM);
}

TEST(Shield, IgnoredStaysIgnoredOverExec) {
  Stepd stepd;
  Shielded program(stepd, {"ignore"});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  ::kill(program.pid(), SIGTERM);
  ::kill(program.pid(), SIGUSR1);
  program.expect_killed_by(SIGUSR1);
}

TEST(Shield, DroppedSignalDoesNotInterruptARead) {
  Stepd stepd;
  Shielded program(stepd, {"read"});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  stepd.send(program.pid(), SIGUSR2);
  program.type("x");
  EXPECT_EQ(program.line(), "read 1");
  EXPECT_EQ(program.status(), 0);
}

TEST(Shield, ForkedWorkersAreCovered) {
  Stepd stepd;
  Shielded program(
      stepd, {"/bin/sh", "-c", "$0 fork & wait", ::strdup(built("tests/shield_program").c_str())});
  ASSERT_EQ(program.line(), "ready");
  const pid_t parent = child_of(program.pid()), worker = child_of(parent);
  ASSERT_GT(worker, 0);
  for (const pid_t pid : {program.pid(), parent, worker}) stepd.send(pid, SIGTERM);
  ::kill(worker, SIGTERM);
  EXPECT_EQ(program.line(), "child killed");
  EXPECT_EQ(program.status(), 0);
}

TEST(Shield, WhoWaitsForSignalsSeesThoseOfOthers) {
  Stepd stepd;
  Shielded program(stepd, {"wait"});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.line(), "waited TERM");
  stepd.send(program.pid(), SIGTERM);
  EXPECT_EQ(program.line(), "timeout");
}

TEST(Shield, TellsTheProgramWhatItHasSet) {
  Stepd stepd;
  Shielded program(stepd, {"queries"});
  EXPECT_EQ(program.line(), "got TERM");
  EXPECT_EQ(program.status(), 0);
}

TEST(Shield, ThreadsAndForksInTheMiddleOfChanges) {
  Stepd stepd;
  Shielded program(stepd, {"threads"});
  ASSERT_EQ(program.line(), "ready");
  for (int i = 0; i < 30; ++i) stepd.send(program.pid(), i % 2 ? SIGUSR1 : SIGUSR2);
  EXPECT_EQ(program.line(), "done");
}

TEST(Shield, BashTrapsAndPythonHandlersWork) {
  Stepd stepd;
  Shielded shell(stepd, {"/bin/bash", "-c",
                         "trap 'echo trapped' TERM; echo ready; while :; do read -t 0.1; done"});
  ASSERT_EQ(shell.line(), "ready");
  stepd.send(shell.pid(), SIGTERM);
  ::kill(shell.pid(), SIGTERM);
  EXPECT_EQ(shell.line(), "trapped");
  ::kill(shell.pid(), SIGUSR1);
  shell.expect_killed_by(SIGUSR1);
  EXPECT_EQ(shell.line(), "$");

  Shielded python(stepd, {"/usr/bin/python3", "-c",
                          "import os, signal, time\n"
                          "print(signal.getsignal(15) == signal.SIG_DFL, flush=True)\n"
                          "signal.signal(10, lambda s, f: os.write(1, b'got %d\\n' % s))\n"
                          "print('ready', flush=True)\n"
                          "while True: time.sleep(0.05)\n"});
  ASSERT_EQ(python.line(), "True");
  ASSERT_EQ(python.line(), "ready");
  stepd.send(python.pid(), SIGUSR1);
  ::kill(python.pid(), SIGUSR1);
  EXPECT_EQ(python.line(), "got 10");
  stepd.send(python.pid(), SIGTERM);
  ::kill(python.pid(), SIGTERM);
  python.expect_killed_by(SIGTERM);
  EXPECT_EQ(python.line(), "$");
}

TEST(Shield, IsOutOfForceWithoutALivingSlurmstepd) {
  // A job that a rank has submitted inherits the number.
  pid_t old = 0;
  {
    Stepd gone;
    old = gone.pid();
  }
  ::setenv("AF_TEST_OLD", std::to_string(old).c_str(), 1);
  Stepd stepd;
  Shielded program(stepd,
                   {"/bin/bash", "-c", "export AF_SHIELD_STEPD_PID=$AF_TEST_OLD; exec $0 default",
                    ::strdup(built("tests/shield_program").c_str())});
  ASSERT_EQ(program.line(), "ready");
  stepd.send(program.pid(), SIGTERM);
  program.expect_killed_by(SIGTERM);
}

}  // namespace
