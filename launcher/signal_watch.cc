// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_watch.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "common/error.h"

namespace af {
namespace {

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

int open_signalfd(const std::vector<int>& signals) {
  const sigset_t set = set_of(signals);
  const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) throw errno_error("cannot watch signals");
  return fd;
}

}  // namespace

void block_watched_signals() {
  sigset_t set = set_of(kForwardedSignals);
  sigaddset(&set, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Writers see EPIPE and go on: a reader that left must not end the agent.
  ::signal(SIGPIPE, SIG_IGN);
}

void restore_signals() noexcept {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? name : std::to_string(signal);
}

SignalWatch::SignalWatch(asio::io_context& io, const std::vector<int>& signals, OnSignal on_signal)
    : descriptor_(io, open_signalfd(signals)), on_signal_(std::move(on_signal)) {
  wait();
}

void SignalWatch::wait() {
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this](const asio::error_code& error) {
                           if (error) return;
                           signalfd_siginfo info;
                           while (::read(descriptor_.native_handle(), &info, sizeof info) ==
                                  static_cast<ssize_t>(sizeof info))
                             on_signal_(info);
                           wait();
                         });
}

}  // namespace af
