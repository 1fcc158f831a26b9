// SPDX-License-Identifier: Apache-2.0
// Signals as events of the loop (signalfd), with who sent them.
#pragma once

#include <sys/signalfd.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <vector>

namespace af {

// What af-launch passes on to ranks. QUIT keeps its default: the way out when nothing else works.
inline const std::vector<int> kForwardedSignals = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP};

// Blocks them and SIGCHLD, and ignores SIGPIPE. To be called before the first thread and child.
void block_watched_signals();
// Undoes it, between fork and exec; async-signal-safe.
void restore_signals() noexcept;

std::string signal_name(int signal);  // "TERM"; "64" where there is no name

class SignalWatch {
 public:
  using OnSignal = std::function<void(const signalfd_siginfo&)>;
  // Signals have to be blocked in all threads before. Throws Error.
  SignalWatch(asio::io_context& io, const std::vector<int>& signals, OnSignal on_signal);

 private:
  void wait();
  asio::posix::stream_descriptor descriptor_;
  OnSignal on_signal_;
};

}  // namespace af
