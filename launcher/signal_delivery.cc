// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_delivery.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace af {
namespace {

// A mask line of /proc/PID/status ("SigBlk:\t00…"); of the main thread where it is a thread's.
uint64_t signal_mask(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(file, line))
    if (line.rfind(name, 0) == 0) return std::stoull(line.substr(line.find('\t') + 1), nullptr, 16);
  return 0;
}

}  // namespace

bool deliver_signal(pid_t pid, int signal) {
  // Nothing can drop this one, and a main thread that has left with pthread_exit() takes none.
  if (signal == SIGKILL) return ::kill(pid, signal) == 0;
  const uint64_t bit = uint64_t{1} << (signal - 1);
  if ((signal_mask(pid, "SigBlk:") & bit) == 0) return ::syscall(SYS_tgkill, pid, pid, signal) == 0;
  for (int i = 0; i < 200 && (signal_mask(pid, "ShdPnd:") & bit) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ::kill(pid, signal) == 0;
}

pid_t find_slurmstepd() {
  pid_t pid = ::getpid();
  for (int depth = 0; depth < 64 && pid > 1; ++depth) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string stat;
    std::getline(file, stat);
    // "pid (comm) state ppid …"; comm may hold anything, so the last ')' ends it.
    const size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos) return 0;
    if (stat.compare(open + 1, close - open - 1, "slurmstepd") == 0) return pid;
    char state = 0;
    std::istringstream(stat.substr(close + 1)) >> state >> pid;
  }
  return 0;
}

}  // namespace af
