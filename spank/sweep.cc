// SPDX-License-Identifier: Apache-2.0
#include "spank/sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "common/unique_fd.h"

namespace af {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<std::string_view> value_of(std::string_view environ, std::string_view name) {
  while (!environ.empty()) {
    const std::string_view entry = environ.substr(0, environ.find('\0'));
    if (entry.size() > name.size() && entry[name.size()] == '=' &&
        entry.substr(0, name.size()) == name)
      return entry.substr(name.size() + 1);
    environ.remove_prefix(std::min(environ.size(), entry.size() + 1));
  }
  return std::nullopt;
}

// Not more than exec can have given it (6 MiB): a process may say that its environment is wherever
// and as large as it likes (PR_SET_MM_MAP), and we are slurmstepd, outside of the job's memory
// limit.
std::string content(const std::string& path) {
  constexpr std::size_t kMost = 8 << 20;
  std::string text;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[16384];
  for (ssize_t n; fd && text.size() < kMost && (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

// Alive, of this user, and marked. A zombie has no environment left and nothing to kill.
bool is_marked(pid_t pid, const SweepMark& mark) {
  const std::string directory = "/proc/" + std::to_string(pid);
  std::istringstream status(content(directory + "/status"));
  std::string line;
  bool ours = false;
  while (std::getline(status, line))
    if (line.rfind("Uid:", 0) == 0) ours = std::strtoul(line.c_str() + 4, nullptr, 10) == mark.uid;
  return ours && carries_mark(content(directory + "/environ"), mark);
}

int pidfd_open(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

bool has_ended(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) != 0;
}

// True if it was marked and has been sent SIGKILL.
bool kill_if_marked(pid_t pid, const SweepMark& mark) {
  if (!is_marked(pid, mark)) return false;  // the cheap look, at nearly all processes of the node
  const UniqueFd pidfd(pidfd_open(pid));
  if (!pidfd) {
    // Kernels before 5.3 have no pidfd. Between this look and the kill lie microseconds, in which
    // the number would have to be freed and given out again.
    return errno == ENOSYS && is_marked(pid, mark) && ::kill(pid, SIGKILL) == 0;
  }
  // The descriptor pins one process. If that one is alive after the second look, it is the one that
  // was looked at.
  if (!is_marked(pid, mark) || has_ended(pidfd.get())) return false;
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0) == 0;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = ::readdir(proc))
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0)
      pids.push_back(std::atoi(entry->d_name));
  ::closedir(proc);
  return pids;
}

}  // namespace

bool carries_mark(std::string_view environ, const SweepMark& mark) {
  const auto run = value_of(environ, "AF_RUN_ID");
  if (!run || (!mark.run_id.empty() && *run != mark.run_id)) return false;
  if (value_of(environ, "SLURM_JOB_ID") != std::to_string(mark.job_id)) return false;
  if (!mark.node.empty() && value_of(environ, "SLURMD_NODENAME") != mark.node) return false;
  const auto step = value_of(environ, "SLURM_STEP_ID");
  if (mark.step_id == kBatchStep || mark.step_id == kInteractiveStep)
    return !step || *step == std::to_string(mark.step_id);
  return step == std::to_string(mark.step_id);
}

SweepResult sweep(const SweepMark& mark, std::chrono::milliseconds limit) noexcept {
  SweepResult result;
  try {
    const Clock::time_point deadline = Clock::now() + limit;
    std::set<pid_t> killed;  // one that does not die is met in every pass
    for (;;) {
      // Again until a pass finds nothing: a process may fork while we go through the list.
      result.left = 0;
      for (const pid_t pid : all_processes()) {
        if (pid == 1 || pid == ::getpid() || !kill_if_marked(pid, mark)) continue;
        ++result.left;
        killed.insert(pid);
      }
      result.killed = static_cast<int>(killed.size());
      if (result.left == 0 || Clock::now() >= deadline) return result;
      ::usleep(20 * 1000);
    }
  } catch (...) {
    return result;  // no memory: what is left is Slurm's to kill
  }
}

}  // namespace af
