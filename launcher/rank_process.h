// SPDX-License-Identifier: Apache-2.0
// Starting one rank: fork and exec, with its own session, pipes for its output, CPU binding, and
// the kernel's promise that it dies with its agent.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "launcher/environment.h"

namespace af {

struct RankCommand {
  std::string path;               // of the program, as resolve_program gave it
  std::vector<std::string> argv;  // argv[0] as the person typed it
  Environment environment;
  std::vector<int> cpus;  // empty: not bound
  // What the rank reads: a pipe from the agent, the agent's own stdin, or nothing (/dev/null).
  enum class Input { kNothing, kPipe, kInherit } input = Input::kNothing;
};

struct RankProcess {
  pid_t pid = -1;
  UniqueFd out, err;  // read ends, non-blocking
  UniqueFd in;        // write end, non-blocking; empty unless Input::kPipe
};

// Where `program` is: itself if it has a '/', else from `search_path` as execvp does.
struct ResolvedProgram {
  std::string path;
  int code = 0;         // 0, or kExitNotFound / kExitCannotExecute with `problem`
  std::string problem;  // "cannot find the program 'x' in PATH"
};
ResolvedProgram resolve_program(const std::string& program, const std::string& search_path);

// Throws Error if the fork or the exec fails. Call it from the main thread: the parent-death signal
// belongs to the thread that forked.
RankProcess start_rank(const RankCommand& command);

}  // namespace af
