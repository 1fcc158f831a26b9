// SPDX-License-Identifier: Apache-2.0
#include "launcher/rank_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "common/error.h"
#include "launcher/descendants.h"
#include "launcher/exit_codes.h"

namespace af {
namespace {

std::string read_all(const UniqueFd& fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    pollfd ready = {.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 10000) <= 0) return text + "<timeout>";
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n == 0) return text;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
}

RankCommand shell(const std::string& script) {
  return {
      .path = "/bin/sh", .argv = {"sh", "-c", script}, .environment = {{"PATH", "/bin:/usr/bin"}}};
}

TEST(RankProcess, HasItsOutputItsEnvironmentAndItsCode) {
  RankCommand command = shell("echo out $X; echo err >&2; exit 5");
  command.environment["X"] = "a  b";
  const RankProcess rank = start_rank(command);
  EXPECT_EQ(read_all(rank.out), "out a b\n");
  EXPECT_EQ(read_all(rank.err), "err\n");
  int status = 0;
  ASSERT_EQ(::waitpid(rank.pid, &status, 0), rank.pid);
  EXPECT_EQ(WEXITSTATUS(status), 5);
}

TEST(RankProcess, KeepsArgumentsAsTheyAre) {
  RankCommand command = shell("printf '<%s>' \"$@\"");
  command.argv.insert(command.argv.end(), {"name", "a b", "", "*", "$X", "\n", "--", "\"q\""});
  const RankProcess rank = start_rank(command);
  EXPECT_EQ(read_all(rank.out), "<a b><><*><$X><\n><--><\"q\">");
  ::waitpid(rank.pid, nullptr, 0);
}

TEST(RankProcess, HasASessionOfItsOwnAndNoDescriptorOfOurs) {
  const UniqueFd ours(::open("/dev/null", O_RDONLY));  // without close-on-exec, as libraries do it
  const RankProcess rank =
      start_rank(shell("ls /proc/$$/fd; cut -d' ' -f6 /proc/$$/stat; echo $$"));
  const std::string text = read_all(rank.out);
  const std::string pid = std::to_string(rank.pid);
  EXPECT_EQ(text, "0\n1\n2\n" + pid + "\n" + pid + "\n");
  ::waitpid(rank.pid, nullptr, 0);
}

TEST(RankProcess, IsTheKernelsFirstChoiceWhenMemoryEnds) {
  const RankProcess rank = start_rank(shell("cat /proc/$$/oom_score_adj"));
  EXPECT_GE(std::stoi(read_all(rank.out)), 300);
  ::waitpid(rank.pid, nullptr, 0);
}

TEST(RankProcess, StandardInputIsAPipeIfWanted) {
  RankCommand command = shell("cat");
  EXPECT_EQ(read_all(start_rank(command).out), "");
  command.input = RankCommand::Input::kPipe;
  RankProcess rank = start_rank(command);
  ASSERT_EQ(::write(rank.in.get(), "hello", 5), 5);
  rank.in.reset();
  EXPECT_EQ(read_all(rank.out), "hello");
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
}

TEST(RankProcess, AFailedExecIsAnErrorHere) {
  RankCommand command = shell("true");
  command.path = "/no/such/file";
  EXPECT_THROW(start_rank(command), Error);
}

TEST(ResolveProgram, FindsWhatTheShellWouldFind) {
  EXPECT_EQ(resolve_program("sh", "/nowhere:/bin").path, "/bin/sh");
  EXPECT_EQ(resolve_program("/bin/sh", "").path, "/bin/sh");
  EXPECT_EQ(resolve_program("no-such-program", "/bin").code, kExitNotFound);
  EXPECT_EQ(resolve_program("", "/bin").code, kExitNotFound);
  EXPECT_EQ(resolve_program("/bin/no-such-program", "/bin").code, kExitNotFound);
  EXPECT_EQ(resolve_program("/etc", "/bin").code, kExitCannotExecute);
  EXPECT_EQ(resolve_program("/etc/passwd", "/bin").code, kExitCannotExecute);
}

TEST(Descendants, AreFoundThroughAnyDepth) {
  const std::map<pid_t, pid_t> parents = {{2, 1}, {3, 2}, {4, 3}, {5, 1}, {6, 9}, {1, 0}};
  auto below = descendants_of(2, parents);
  std::sort(below.begin(), below.end());
  EXPECT_EQ(below, (std::vector<pid_t>{3, 4}));
  EXPECT_TRUE(descendants_of(4, parents).empty());
}

TEST(Descendants, DaemonsAreEndedAsWell) {
  // In a process of its own: being a subreaper is for life.
  const pid_t child = ::fork();
  if (child == 0) {
    become_subreaper();
    const RankProcess rank =
        start_rank(shell("(setsid sh -c 'sleep 300 & echo $!; wait' &) ; sleep 0.1; exit 0"));
    char text[32] = {};
    pollfd ready = {.fd = rank.out.get(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, 10000);
    if (::read(rank.out.get(), text, sizeof text - 1) <= 0) ::_exit(2);
    ::waitpid(rank.pid, nullptr, 0);
    const pid_t daemon = std::atoi(text);
    if (::kill(daemon, 0) != 0) ::_exit(3);
    if (!end_descendants(10).empty()) ::_exit(4);
    ::_exit(::kill(daemon, 0) == 0 ? 5 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace af
