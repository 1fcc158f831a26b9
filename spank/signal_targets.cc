// SPDX-License-Identifier: Apache-2.0
#include "spank/signal_targets.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace af {
namespace {

bool in_mask(uint64_t mask, int signal) {
  return (mask >> (signal - 1) & 1) != 0;
}

bool stops_or_continues(int signal) {
  return signal == SIGCONT || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

bool is_shell(const std::string& program) {
  static const std::set<std::string> kShells = {"bash", "sh",   "dash", "zsh",  "ksh",
                                                "mksh", "tcsh", "csh",  "fish", "busybox"};
  return kShells.count(program) != 0;
}

bool catches(const ProcessState& process, int signal) {
  return in_mask(process.caught, signal) ||
         (!is_shell(process.program) && in_mask(process.blocked, signal));
}

// A process that its parent made to share its own work: forked without exec (same program, same
// arguments: DataLoader workers, subshells), or started by Python's multiprocessing with "spawn".
bool is_worker_of(const ProcessState& child, const ProcessState& parent) {
  if (child.command_line.find("--multiprocessing-fork") != std::string::npos ||
      child.command_line.find("multiprocessing.forkserver") != std::string::npos ||
      child.command_line.find("multiprocessing.resource_tracker") != std::string::npos)
    return true;
  return !is_shell(parent.program) && child.program == parent.program &&
         child.command_line == parent.command_line;
}

class Tree {
 public:
  explicit Tree(const std::vector<ProcessState>& processes) {
    for (const ProcessState& process : processes) by_pid_[process.pid] = &process;
    for (const ProcessState& process : processes) children_[process.parent].push_back(&process);
  }

  const ProcessState* find(pid_t pid) const {
    const auto found = by_pid_.find(pid);
    return found == by_pid_.end() ? nullptr : found->second;
  }

  void everything(pid_t root, std::vector<const ProcessState*>& result) const {
    if (const ProcessState* process = find(root)) result.push_back(process);
    const auto found = children_.find(root);
    if (found == children_.end()) return;
    for (const ProcessState* child : found->second) everything(child->pid, result);
  }

  void topmost_catching(pid_t parent, int signal, std::vector<const ProcessState*>& result) const {
    const auto found = children_.find(parent);
    if (found == children_.end()) return;
    for (const ProcessState* child : found->second) {
      const ProcessState* above = find(parent);
      // A worker in the place of a program that does not catch the signal itself would get it
      // alone, and the program then reports that its worker was killed. torch's workers do catch
      // SIGTERM.
      const bool worker = above != nullptr && is_worker_of(*child, *above);
      if (!worker && catches(*child, signal))
        result.push_back(child);
      else if (!worker)
        topmost_catching(child->pid, signal, result);
    }
  }

 private:
  std::map<pid_t, const ProcessState*> by_pid_;
  std::map<pid_t, std::vector<const ProcessState*>> children_;
};

uint64_t hex_mask(const std::string& text) {
  return std::strtoull(text.c_str(), nullptr, 16);
}

bool read_process(pid_t pid, ProcessState& process) {
  const std::string directory = "/proc/" + std::to_string(pid);
  std::ifstream status(directory + "/status");
  if (!status) return false;
  process.pid = pid;
  std::string line;
  while (std::getline(status, line)) {
    std::istringstream words(line);
    std::string name, value;
    words >> name >> value;
    if (name == "PPid:") process.parent = std::atoi(value.c_str());
    if (name == "State:" && value == "Z") return false;
    if (name == "SigCgt:") process.caught = hex_mask(value);
    if (name == "SigBlk:") process.blocked = hex_mask(value);
    if (name == "SigIgn:") process.ignored = hex_mask(value);
  }
  std::ifstream arguments(directory + "/cmdline", std::ios::binary);
  process.command_line.assign(std::istreambuf_iterator<char>(arguments), {});
  char target[4096];
  const ssize_t length = ::readlink((directory + "/exe").c_str(), target, sizeof(target));
  if (length > 0) {
    const std::string path(target, static_cast<size_t>(length));
    process.program = path.substr(path.rfind('/') + 1);
  }
  process.group = ::getpgid(pid);
  return true;
}

}  // namespace

std::vector<pid_t> signal_targets(const std::vector<ProcessState>& processes, pid_t script,
                                  pid_t script_group, int signal, Reached reached) {
  if (reached == Reached::kEverybody) return {};
  const Tree tree(processes);
  std::vector<const ProcessState*> chosen;
  const ProcessState* shell = tree.find(script);
  if (!stops_or_continues(signal)) {
    if (shell != nullptr && catches(*shell, signal)) chosen.push_back(shell);
    tree.topmost_catching(script, signal, chosen);
  }
  if (chosen.empty()) tree.everything(script, chosen);

  std::vector<pid_t> result;
  for (const ProcessState* process : chosen)
    if (reached != Reached::kGroup || process->group != script_group)
      result.push_back(process->pid);
  return result;
}

std::vector<pid_t> catching_descendants(const std::vector<ProcessState>& processes, pid_t script,
                                        int signal) {
  std::vector<const ProcessState*> chosen;
  Tree(processes).topmost_catching(script, signal, chosen);
  std::vector<pid_t> result(chosen.size());
  std::transform(chosen.begin(), chosen.end(), result.begin(),
                 [](const ProcessState* process) { return process->pid; });
  return result;
}

std::vector<ProcessState> processes_below(pid_t root) {
  std::map<pid_t, std::vector<ProcessState>> children;
  if (DIR* proc = ::opendir("/proc")) {
    while (const dirent* entry = ::readdir(proc)) {
      ProcessState process;
      if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0 &&
          read_process(std::atoi(entry->d_name), process))
        children[process.parent].push_back(std::move(process));
    }
    ::closedir(proc);
  }
  std::vector<ProcessState> result;
  std::function<void(pid_t)> collect = [&](pid_t parent) {
    for (ProcessState& process : children[parent]) {
      result.push_back(std::move(process));
      collect(result.back().pid);
    }
  };
  collect(root);
  return result;
}

}  // namespace af
