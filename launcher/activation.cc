// SPDX-License-Identifier: Apache-2.0
#include "launcher/activation.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>

#include "common/error.h"
#include "common/unique_fd.h"
#include "launcher/exec_parts.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

namespace fs = std::filesystem;

// $1…: the scripts. Descriptor 3: the resulting environment, and before it one line "failed N" for
// each script that failed. A script must not be able to end the shell or to print into our pipe.
constexpr const char* kSource =
    "for script; do . \"$script\" >&2 3>&- </dev/null || printf 'failed %s\\0' \"$script\" >&3; "
    "done;"
    "exec env -0 >&3";

std::vector<std::string> scripts_of(const std::string& prefix) {
  std::vector<std::string> scripts;
  if (prefix.empty()) return scripts;
  std::error_code error;
  for (fs::directory_iterator entry(prefix + "/etc/conda/activate.d", error), end; entry != end;
       entry.increment(error)) {
    if (error) break;
    if (entry->path().extension() == ".sh") scripts.push_back(entry->path().string());
  }
  std::ranges::sort(scripts);
  return scripts;
}

pid_t start_shell(const std::vector<std::string>& scripts, const Environment& environment,
                  int output) {
  std::vector<std::string> argv = {"bash", "--noprofile", "--norc", "-c", kSource, "bash"};
  argv.insert(argv.end(), scripts.begin(), scripts.end());
  std::vector<std::string> strings = environment_strings(environment);
  const std::vector<char*> arguments = exec_pointers(argv), variables = exec_pointers(strings);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::setpgid(0, 0);  // so that what a script leaves running can be ended with it
  if (output == 3)
    ::fcntl(3, F_SETFD, 0);
  else
    ::dup2(output, 3);
  ::syscall(SYS_close_range, 4U, ~0U, CLOSE_RANGE_CLOEXEC);  // sockets of ours
  restore_signals();
  ::execve("/bin/bash", arguments.data(), variables.data());
  ::_exit(127);
}

// Everything until the end of file; false if that does not come in time.
bool read_until_end(int fd, double seconds, std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
    const int count = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    char buffer[65536];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return true;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) return false;
  }
}

Activated parse(std::string_view text) {
  Activated result;
  constexpr std::string_view kFailed = "failed ";
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const size_t equals = entry.find('=');
    if (entry.starts_with(kFailed))
      result.warnings.push_back(
          fmt::format("the environment's script {} failed", entry.substr(kFailed.size())));
    else if (equals != entry.npos && equals > 0)
      result.environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  // bash's own, not the scripts'.
  for (const char* name : {"_", "SHLVL", "PWD", "OLDPWD"}) result.environment.erase(name);
  return result;
}

}  // namespace

Activated activate(const std::string& prefix, Environment before, double seconds) {
  const std::vector<std::string> scripts = scripts_of(prefix);
  if (scripts.empty()) return {std::move(before), {}};
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe");
  UniqueFd read(fds[0]), write(fds[1]);
  const pid_t pid = start_shell(scripts, before, write.get());
  if (pid < 0) throw errno_error("cannot fork");
  write.reset();
  std::string text;
  const bool complete = read_until_end(read.get(), seconds, text);
  // It closes the pipe when it ends, unless a script has put another program in its place.
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; complete && i < 100 && (ended = ::waitpid(pid, &status, WNOHANG)) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (ended != pid) {
    ::kill(-pid, SIGKILL);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  Activated result = parse(text);
  if (!complete || status != 0 || result.environment.empty()) {
    const std::string why = complete ? "ended the shell" : fmt::format("took over {} s", seconds);
    return {std::move(before),
            {fmt::format("the scripts in {}/etc/conda/activate.d {}: their variables are not set",
                         prefix, why)}};
  }
  for (const char* name : {"_", "SHLVL", "PWD", "OLDPWD"})
    if (const auto kept = before.find(name); kept != before.end()) result.environment.insert(*kept);
  return result;
}

}  // namespace af
