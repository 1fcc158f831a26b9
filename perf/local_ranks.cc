// SPDX-License-Identifier: Apache-2.0
#include "perf/local_ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "common/error.h"

namespace af::perf {

int run_local_ranks(int count, const std::function<int(int rank)>& body) {
  std::vector<pid_t> children;
  const auto end_all = [&children] {
    for (const pid_t child : children) ::kill(child, SIGTERM);
  };
  std::fflush(nullptr);  // what is buffered would be printed by every child again
  const pid_t parent = ::getpid();
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) {
      const Error error = errno_error("cannot fork rank " + std::to_string(rank));
      end_all();
      throw error;
    }
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const int code = body(rank);
      std::fflush(nullptr);
      ::_exit(code);  // not exit(): the parent's destructors and handlers are not the child's
    }
    children.push_back(child);
  }
  int result = 0;
  while (!children.empty()) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, 0);
    if (child < 0) break;
    std::erase(children, child);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 || result != 0) continue;
    result = code;
    end_all();
  }
  return result;
}

}  // namespace af::perf
