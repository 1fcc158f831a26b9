// SPDX-License-Identifier: Apache-2.0
#include "launcher/child_command.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/steady_timer.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "launcher/descendants.h"

namespace af {
namespace {

ChildRequest shell(const std::string& script) {
  return {.argv = {"sh", "-c", script}, .environment = {{"PATH", "/usr/bin:/bin"}}};
}

ChildResult run(ChildRequest request) {
  asio::io_context io;
  std::optional<ChildResult> result;
  ChildCommand::start(io, std::move(request), [&](ChildResult one) {
    EXPECT_FALSE(result) << "called twice";
    result = std::move(one);
  });
  EXPECT_FALSE(result) << "called from within start()";
  io.run_for(std::chrono::seconds(30));
  EXPECT_TRUE(result);
  return result.value_or(ChildResult{});
}

bool has_children() {
  siginfo_t info = {};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

// Whether the process goes within 10 s; a zombie has gone.
bool goes(pid_t pid) {
  for (int i = 0; i < 1000; ++i) {
    if (!process_parents().contains(pid)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(ChildCommand, HasCodeOutputAndInput) {
  ChildRequest request = shell("cat; echo err >&2; exit 7");
  request.input = "two\nlines\n";
  const ChildResult result = run(request);
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.signal, 0);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.out, "two\nlines\n");
  EXPECT_EQ(result.err, "err\n");
  EXPECT_FALSE(has_children());
}

TEST(ChildCommand, HasTheEnvironmentThatWasGivenAndNoOther) {
  ::setenv("AF_CHILD_COMMAND_TEST", "ours", 1);
  ChildRequest request = {.argv = {"env"},
                          .environment = {{"PATH", "/usr/bin:/bin"}, {"X", "a b"}}};
  EXPECT_EQ(run(request).out, "PATH=/usr/bin:/bin\nX=a b\n");
  ::unsetenv("AF_CHILD_COMMAND_TEST");
}

TEST(ChildCommand, HasNoDescriptorOfOurs) {
  ChildRequest request = shell("ls /proc/$$/fd");
  EXPECT_EQ(run(request).out, "0\n1\n2\n");
}

TEST(ChildCommand, TellsTheSignal) {
  const ChildResult result = run(shell("kill -TERM $$"));
  EXPECT_EQ(result.code, -1);
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_FALSE(result.timed_out);
  EXPECT_FALSE(result.ok());
}

TEST(ChildCommand, StartsWithDefaultSignals) {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  EXPECT_EQ(run(shell("kill -TERM $$; echo still here")).signal, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(ChildCommand, SaysWhyItCannotStart) {
  ChildRequest request = {.argv = {"no-such-program"}, .environment = {{"PATH", "/usr/bin"}}};
  ChildResult result = run(request);
  EXPECT_EQ(result.code, 127);
  EXPECT_EQ(result.problem, "cannot find the program 'no-such-program' in PATH");
  const std::string path = testing::TempDir() + "af-child-command-bad";
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  request.argv = {path};
  result = run(request);
  EXPECT_EQ(result.code, 127);
  EXPECT_EQ(result.problem, "cannot run " + path + ": No such file or directory");
  std::filesystem::remove(path);
  EXPECT_FALSE(has_children());
}

TEST(ChildCommand, EndsTheWholeGroupWhenTheLimitIsOver) {
  ChildRequest request = shell("sleep 1000 & echo $!; wait");
  request.limit = 0.3;
  const ChildResult result = run(request);
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_TRUE(goes(std::stoi(result.out)));
  EXPECT_FALSE(has_children());
}

TEST(ChildCommand, DoesNotWaitForWhatHoldsItsOutput) {
  const auto start = std::chrono::steady_clock::now();
  const ChildResult result = run(shell("sleep 1000 & echo $!; exit 3"));
  EXPECT_EQ(result.code, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  ::kill(std::stoi(result.out), SIGKILL);
}

TEST(ChildCommand, KeepsNoMoreThanAsked) {
  ChildRequest request = shell("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo x");
  request.most_output = 100000;
  const ChildResult result = run(request);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out.size(), 100000u);
  EXPECT_EQ(result.err.size(), 100000u);
}

TEST(ChildCommand, KeepsTheOrderOfALongOutput) {
  const ChildResult result = run(shell("seq 100000"));
  std::string expected;
  for (int i = 1; i <= 100000; ++i) expected += std::to_string(i) + "\n";
  EXPECT_TRUE(result.out == expected) << result.out.size() << " of " << expected.size() << " bytes";
}

// As agent, front and keeper do in their handlers of SIGCHLD.
TEST(ChildCommand, IsNotDisturbedByOthersWhoReap) {
  asio::io_context io;
  int codes[20] = {}, ended = 0;
  for (int i = 0; i < 20; ++i)
    ChildCommand::start(io, shell("exit " + std::to_string(100 + i)), [&, i](ChildResult result) {
      codes[i] = result.code;
      ++ended;
    });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (ended < 20 && std::chrono::steady_clock::now() < end) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    io.run_one_for(std::chrono::milliseconds(1));
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(codes[i], 100 + i);
}

TEST(ChildCommand, DoesNotStopTheLoop) {
  asio::io_context io;
  int ticks = 0;
  bool ended = false;
  asio::steady_timer timer(io);
  std::function<void()> tick = [&] {
    timer.expires_after(std::chrono::milliseconds(5));
    timer.async_wait([&](const asio::error_code&) {
      ++ticks;
      if (!ended) tick();
    });
  };
  tick();
  ChildCommand::start(io, shell("sleep 0.5"), [&](ChildResult) { ended = true; });
  io.run_for(std::chrono::seconds(30));
  EXPECT_TRUE(ended);
  EXPECT_GT(ticks, 10);
}

TEST(ChildCommand, AbandonedItDiesAndSaysNothing) {
  asio::io_context io;
  bool called = false;
  auto command = ChildCommand::start(io, shell("sleep 1000"), [&](ChildResult) { called = true; });
  command->abandon();
  io.run_for(std::chrono::seconds(30));
  EXPECT_FALSE(called);
  EXPECT_FALSE(has_children());
}

TEST(ChildCommand, DiesWithItsParent) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    asio::io_context io;
    const std::string pipe =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fds[1]);
    ChildCommand::start(io, shell("echo $$ > " + pipe + "; exec sleep 1000"), [](ChildResult) {});
    io.run_for(std::chrono::seconds(30));
    ::_exit(0);
  }
  ::close(fds[1]);
  char text[32] = {};
  ASSERT_GT(::read(fds[0], text, sizeof text - 1), 0);
  ::kill(parent, SIGKILL);
  EXPECT_TRUE(goes(std::stoi(text)));
  ::waitpid(parent, nullptr, 0);
  ::close(fds[0]);
}

}  // namespace
}  // namespace af
