// SPDX-License-Identifier: Apache-2.0
#include "launcher/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common/unique_fd.h"

namespace af {
namespace {

// The fields after the name: it stands in parentheses and may itself hold any character.
bool read_state_and_parent(pid_t pid, char* state, pid_t* parent) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  const ssize_t size = ::read(fd.get(), text, sizeof text - 1);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* after_name = std::strrchr(text, ')');
  return after_name != nullptr && std::sscanf(after_name + 1, " %c %d", state, parent) == 2;
}

}  // namespace

std::vector<pid_t> descendants_of(pid_t root, const std::map<pid_t, pid_t>& parents) {
  std::multimap<pid_t, pid_t> children;
  for (const auto& [pid, parent] : parents) children.emplace(parent, pid);
  std::vector<pid_t> found;
  std::vector<pid_t> open = {root};
  while (!open.empty()) {
    const pid_t pid = open.back();
    open.pop_back();
    const auto [begin, end] = children.equal_range(pid);
    for (auto child = begin; child != end; ++child) {
      found.push_back(child->second);
      open.push_back(child->second);
    }
  }
  return found;
}

std::map<pid_t, pid_t> process_parents() {
  std::map<pid_t, pid_t> parents;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return parents;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    char state = 0;
    pid_t parent = 0;
    if (pid <= 0 || !read_state_and_parent(pid, &state, &parent)) continue;
    if (state != 'Z' && state != 'X') parents[pid] = parent;
  }
  ::closedir(proc);
  return parents;
}

void become_subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::vector<pid_t> end_descendants(double seconds, const std::set<pid_t>& spared) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    std::map<pid_t, pid_t> parents = process_parents();
    for (const pid_t pid : spared) parents.erase(pid);
    std::vector<pid_t> left = descendants_of(::getpid(), parents);
    // A pid from the list may have ended and been given to another process in between, but only if
    // its parent reaped it, and the pid counter then has to wrap within this loop.
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (left.empty() || std::chrono::steady_clock::now() > deadline) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace af
