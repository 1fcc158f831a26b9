// SPDX-License-Identifier: Apache-2.0
// The connection on which the agent says what becomes of the world, and the thread that reads it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "collectives/local/fork_guard.h"
#include "common/unique_fd.h"

namespace af {

class ControlConnection {
 public:
  // Connects to AF_SOCKET's value and starts the thread `af-world`, on which both functions run:
  // `on_line` with each line that comes, `on_end` once, when no more can. Throws CommunicatorError
  // (store).
  ControlConnection(const std::string& socket, std::function<void(const std::string&)> on_line,
                    std::function<void(const std::string&)> on_end);
  // Waits at most 1 s for what has not been sent.
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  // Any thread; never blocks for the agent, whose socket may be full: the thread sends the rest.
  // `line` has no newline. Nothing happens once the connection has ended, and in a forked child.
  // A line that may be dropped is, if 1 MiB waits already.
  void send(const std::string& line, bool may_be_dropped = false);

 private:
  void run();
  // False once the connection has ended; `why` says how.
  bool read(std::string& why);
  void flush();  // with the lock

  const UniqueFd fd_;
  const UniqueFd wake_;  // the thread has something to do beside reading
  const std::function<void(const std::string&)> on_line_;
  const std::function<void(const std::string&)> on_end_;
  // A forked child's copy would hide from the agent that this process has closed its own.
  std::optional<local::ForkGuard> fork_guard_;
  const pid_t owner_;
  std::mutex mutex_;
  std::string pending_;  // not sent yet
  bool ended_ = false;
  bool stopping_ = false;
  std::string received_;  // the thread's
  std::thread thread_;
};

}  // namespace af
