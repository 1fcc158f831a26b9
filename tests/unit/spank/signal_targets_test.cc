// SPDX-License-Identifier: Apache-2.0
// To whom the supervisor of a batch script passes a signal (case B14).
#include "spank/signal_targets.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace af {
namespace {

uint64_t catches(std::initializer_list<int> signals) {
  uint64_t mask = 0;
  for (const int signal : signals) mask |= uint64_t{1} << (signal - 1);
  return mask;
}

constexpr pid_t kScript = 10;
constexpr pid_t kGroup = 9;  // the supervisor's, and so the script's

ProcessState process(pid_t pid, pid_t parent, const char* program, std::string line,
                     std::initializer_list<int> caught = {}, pid_t group = kGroup) {
  return {pid, parent, group, catches(caught), 0, 0, program, std::move(line)};
}

ProcessState blocking(ProcessState state, int signal) {
  state.blocked = catches({signal});
  return state;
}

struct Row {
  const char* what;
  std::vector<ProcessState> processes;
  int signal;
  Reached reached;
  std::vector<pid_t> targets;
};

class SignalTargets : public testing::TestWithParam<Row> {};

TEST_P(SignalTargets, Table) {
  const Row& row = GetParam();
  std::vector<pid_t> targets =
      signal_targets(row.processes, kScript, kGroup, row.signal, row.reached);
  std::sort(targets.begin(), targets.end());
  EXPECT_EQ(targets, row.targets) << row.what;
}

const ProcessState kShell = process(kScript, 9, "bash", "/bin/bash script");
const ProcessState kShellWithTrap = process(kScript, 9, "bash", "/bin/bash script", {SIGTERM});
const ProcessState kTrain = process(11, kScript, "python3.11", "python train.py", {SIGTERM});
const ProcessState kPlainTrain = process(11, kScript, "python3.11", "python train.py");

INSTANTIATE_TEST_SUITE_P(
    Cases, SignalTargets,
    testing::Values(
        Row{"python in the foreground", {kShell, kTrain}, SIGTERM, Reached::kSupervisor, {11}},
        Row{"bash with a trap gets it too",
            {kShellWithTrap, kTrain},
            SIGTERM,
            Reached::kSupervisor,
            {kScript, 11}},
        Row{"a trap alone",
            {kShellWithTrap, kPlainTrain},
            SIGTERM,
            Reached::kSupervisor,
            {kScript}},
        Row{"nobody catches: the default action for all",
            {kShell, kPlainTrain},
            SIGTERM,
            Reached::kSupervisor,
            {kScript, 11}},
        Row{"another signal than the one it catches",
            {kShell, kTrain},
            SIGUSR1,
            Reached::kSupervisor,
            {kScript, 11}},
        Row{"topmost: af-launch, not its children",
            {kShell, process(11, kScript, "af-launch", "af-launch python", {SIGTERM}),
             process(12, 11, "srun", "srun", {SIGTERM})},
            SIGTERM,
            Reached::kSupervisor,
            {11}},
        Row{"who blocks it waits for it (signalfd)",
            {kShell, blocking(process(11, kScript, "af-launch", "af-launch python"), SIGTERM),
             process(12, 11, "srun", "srun", {SIGTERM})},
            SIGTERM,
            Reached::kSupervisor,
            {11}},
        Row{"a shell that forks blocks it for a moment",
            {blocking(kShell, SIGTERM), kTrain},
            SIGTERM,
            Reached::kSupervisor,
            {11}},
        Row{"through wrappers that do not catch",
            {kShell, process(11, kScript, "time", "time pixi run train"),
             process(12, 11, "pixi", "pixi run train"),
             process(13, 12, "python3.11", "python train.py", {SIGTERM})},
            SIGTERM,
            Reached::kSupervisor,
            {13}},
        Row{"both sides of a pipe and a subshell",
            {kShell, process(11, kScript, "bash", "/bin/bash script"),
             process(12, 11, "python3.11", "python train.py", {SIGTERM}),
             process(13, kScript, "tee", "tee log")},
            SIGTERM,
            Reached::kSupervisor,
            {12}},
        Row{"a subshell with a trap",
            {kShell, process(11, kScript, "bash", "/bin/bash script", {SIGTERM})},
            SIGTERM,
            Reached::kSupervisor,
            {11}},
        Row{"workers of a program with a handler",
            {kShell, kTrain, process(12, 11, "python3.11", "python train.py", {SIGTERM})},
            SIGTERM,
            Reached::kSupervisor,
            {11}},
        Row{"workers are not chosen in the place of a program without one",
            {kShell, kPlainTrain, process(12, 11, "python3.11", "python train.py", {SIGTERM}),
             process(13, 11, "python3.11", "python -c spawn_main() --multiprocessing-fork",
                     {SIGTERM})},
            SIGTERM,
            Reached::kSupervisor,
            {kScript, 11, 12, 13}},
        Row{"--full: the group has had it",
            {kShell, kTrain, process(12, kScript, "python3.11", "python b.py", {SIGTERM}, 12)},
            SIGTERM,
            Reached::kGroup,
            {12}},
        Row{"--full: the script has died of it",
            {process(11, kScript, "python3.11", "python train.py", {SIGUSR1})},
            SIGUSR1,
            Reached::kGroup,
            {}},
        Row{"linuxproc: all have had it", {kShell, kTrain}, SIGTERM, Reached::kEverybody, {}},
        Row{"continue goes to all",
            {kShell, kTrain, process(12, 11, "python3.11", "python train.py", {SIGCONT})},
            SIGCONT,
            Reached::kSupervisor,
            {kScript, 11, 12}},
        Row{"nothing is left", {}, SIGTERM, Reached::kSupervisor, {}}));

TEST(CatchingDescendants, AreNeverTheScript) {
  EXPECT_EQ(catching_descendants({kShellWithTrap, kTrain}, kScript, SIGTERM),
            std::vector<pid_t>({11}));
  EXPECT_TRUE(catching_descendants({kShellWithTrap, kPlainTrain}, kScript, SIGTERM).empty());
}

TEST(ProcessesBelow, ShowsWhatAChildCatches) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGUSR2, [](int) {});
    ::signal(SIGHUP, SIG_IGN);
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "r", 1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::vector<ProcessState> found = processes_below(::getpid());
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  const auto child = std::find_if(found.begin(), found.end(),
                                  [&](const ProcessState& state) { return state.pid == pid; });
  ASSERT_NE(child, found.end());
  EXPECT_EQ(child->parent, ::getpid());
  EXPECT_EQ(child->group, ::getpgrp());
  EXPECT_EQ(child->caught & catches({SIGUSR2, SIGHUP}), catches({SIGUSR2}));
  EXPECT_EQ(child->ignored & catches({SIGUSR2, SIGHUP}), catches({SIGHUP}));
  EXPECT_EQ(child->program, "spank");
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace af
