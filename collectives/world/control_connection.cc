// SPDX-License-Identifier: Apache-2.0
#include "collectives/world/control_connection.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "af/communicator.h"
#include "collectives/store/session_store.h"

namespace af {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestLine = 4 << 20;
constexpr std::size_t kMostPending = 1 << 20;
constexpr std::chrono::seconds kFarewell(1);

}  // namespace

ControlConnection::ControlConnection(const std::string& socket,
                                     std::function<void(const std::string&)> on_line,
                                     std::function<void(const std::string&)> on_end)
    : fd_(connect_session(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      on_line_(std::move(on_line)),
      on_end_(std::move(on_end)),
      owner_(getpid()) {
  if (!wake_) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            std::string("cannot make an eventfd: ") + std::strerror(errno));
  }
  fork_guard_.emplace(std::vector<int>{fd_.get()});
  // Signals are for the program's own threads: a Python handler must not wait for this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "af-world");
    run();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ControlConnection::~ControlConnection() {
  const auto deadline = Clock::now() + kFarewell;
  while (true) {
    std::unique_lock lock(mutex_);
    flush();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (ended_ || pending_.empty() || left.count() <= 0) {
      stopping_ = true;
      break;
    }
    lock.unlock();
    pollfd polled = {fd_.get(), POLLOUT, 0};
    poll(&polled, 1, int(left.count()));
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void ControlConnection::send(const std::string& line, bool may_be_dropped) {
  if (getpid() != owner_) return;
  std::lock_guard lock(mutex_);
  if (ended_) return;
  flush();
  if (may_be_dropped && pending_.size() + line.size() > kMostPending) return;
  pending_ += line;
  pending_ += '\n';
  flush();
  if (!pending_.empty()) eventfd_write(wake_.get(), 1);
}

void ControlConnection::flush() {
  std::size_t sent = 0;
  while (!ended_ && sent < pending_.size()) {
    const ssize_t n = ::send(fd_.get(), pending_.data() + sent, pending_.size() - sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      ended_ = true;  // the thread learns it from its own read
      break;
    }
    sent += std::size_t(n);
  }
  pending_.erase(0, ended_ ? pending_.size() : sent);
}

void ControlConnection::run() {
  std::string why;
  while (true) {
    short events = POLLIN;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (!pending_.empty()) events = POLLIN | POLLOUT;
    }
    pollfd polled[] = {{fd_.get(), events, 0}, {wake_.get(), POLLIN, 0}};
    poll(polled, 2, -1);
    if (polled[1].revents != 0) {
      eventfd_t ignored = 0;
      eventfd_read(wake_.get(), &ignored);
    }
    if ((polled[0].revents & POLLOUT) != 0) {
      std::lock_guard lock(mutex_);
      flush();
    }
    if ((polled[0].revents & ~POLLOUT) != 0 && !read(why)) break;
  }
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    pending_.clear();
  }
  on_end_(why);
}

bool ControlConnection::read(std::string& why) {
  char bytes[4096];
  const ssize_t n = recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) {
    why = n == 0 ? "it closed the connection" : std::strerror(errno);
    return false;
  }
  received_.append(bytes, std::size_t(n));
  std::size_t begin = 0;
  for (std::size_t end; (end = received_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    try {
      on_line_(received_.substr(begin, end - begin));
    } catch (const std::exception& error) {
      why = error.what();
      return false;
    }
  }
  received_.erase(0, begin);
  if (received_.size() <= kLongestLine) return true;
  why = "it sent a line of more than 4 MiB";
  return false;
}

}  // namespace af
