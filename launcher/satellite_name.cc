// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_name.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "launcher/challenge.h"
#include "launcher/exec_parts.h"
#include "launcher/exit_codes.h"
#include "launcher/rank_process.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestRunId = 64;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(500);

// The wait status, or nothing if it had to be killed at the deadline.
bool run_until(const std::string& path, char* const* argv, char* const* envp,
               Clock::time_point deadline, int* status) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kExitLauncherLost);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2; ++fd) ::dup2(nothing, fd);
    ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    restore_signals();
    ::execve(path.c_str(), argv, envp);
    ::_exit(kExitCannotExecute);
  }
  bool killed = false;
  for (;;) {
    const pid_t got = ::waitpid(pid, status, WNOHANG);
    if (got == pid) return !killed;
    if (got < 0 && errno != EINTR) return false;
    if (!killed && Clock::now() > deadline) killed = ::kill(pid, SIGKILL) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

std::string satellite_name(const std::string& run_id, const std::string& nonce) {
  std::string name = run_id.substr(0, kLongestRunId);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && std::strchr("._-", c) == nullptr) c = '_';
  return "af-" + name + "-" + nonce;
}

std::string satellite_nonce() {
  return random_hex(8);
}

Environment slurm_environment(const Environment& inherited) {
  Environment environment;
  for (const char* name :
       {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "SLURM_CONF", "SLURM_CONF_SERVER"})
    if (const auto found = inherited.find(name); found != inherited.end())
      environment.insert(*found);
  environment.emplace("PATH", kDefaultPath);
  return environment;
}

std::string cancel_satellites(const std::string& name, const Environment& inherited,
                              double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  const Environment environment = slurm_environment(inherited);
  const ResolvedProgram program = resolve_program("scancel", environment.at("PATH"));
  if (program.code != 0) return program.problem;
  std::vector<std::string> words = {"scancel", "--me", "--name=" + name};
  std::vector<std::string> variables = environment_strings(environment);
  const std::vector<char*> argv = exec_pointers(words), envp = exec_pointers(variables);
  for (;;) {
    int status = 0;
    const bool ended = run_until(program.path, argv.data(), envp.data(), deadline, &status);
    if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    if (Clock::now() + kBetweenAttempts > deadline)
      return fmt::format("Slurm's controller has not answered within {} s", seconds);
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace af
