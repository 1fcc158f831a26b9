// SPDX-License-Identifier: Apache-2.0
// Runs a command (sbatch, squeue, scontrol, …) beside the event loop: with a limit in seconds, its
// output collected, one answer at the end.
//
// Between this process and the command stands a small one of ours that waits for it and tells its
// end through a pipe. So the exit code is never lost, although the agent, the keeper and the front
// reap with waitpid(-1) whatever has ended; and the command's group has a leader that is surely
// still there when the group is killed.
#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/environment.h"

namespace af {

struct ChildRequest {
  std::vector<std::string> argv;  // argv[0] is looked for in environment's PATH
  Environment environment;        // all that it gets
  std::string input;              // its stdin, a file; empty: nothing to read
  double limit = 30;              // seconds, then its whole process group is killed
  size_t most_output = 1 << 20;   // bytes kept of stdout and of stderr; more is dropped
};

struct ChildResult {
  int code = -1;           // of exit(); -1: it ended otherwise. 126, 127: see `problem`
  int signal = 0;          // that ended it
  bool timed_out = false;  // the limit was over: what it has done by then is not known
  std::string problem;     // why it could not be started, in words
  std::string out, err;

  bool ok() const { return code == 0; }
};

// The processes that commands of this process run in now: what ends descendants may have to spare
// them. For the loop's thread.
const std::set<pid_t>& running_commands();

class ChildCommand {
 public:
  using OnEnd = std::function<void(ChildResult)>;

  // Starts it. `on_end` is called once, from the loop, never from within start(). A command that
  // cannot be started ends with 126 or 127 and `problem`. The command (not what it has started)
  // dies with the thread that calls start().
  // Throws Error if this process cannot fork or has no descriptors left.
  static std::shared_ptr<ChildCommand> start(asio::io_context& io, ChildRequest request,
                                             OnEnd on_end);
  // Kills the group; on_end is not called any more. The object may be dropped without it: the
  // command then goes on, kept by the loop.
  void abandon();
  ~ChildCommand();

 private:
  struct Parts;
  explicit ChildCommand(std::unique_ptr<Parts> parts);
  void watch(const std::shared_ptr<ChildCommand>& self);
  void read(const std::shared_ptr<ChildCommand>& self, size_t stream);
  void drain(size_t stream);
  void kill_group();
  void ended();

  std::unique_ptr<Parts> parts_;
};

}  // namespace af
