// SPDX-License-Identifier: Apache-2.0
#include "collectives/store/line_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "af/communicator.h"

namespace af {
namespace {

using nlohmann::json;

// The server answers a get at its timeout; only if it is gone or hung do we give up on our own.
constexpr std::chrono::seconds kServerGrace(5);
constexpr std::chrono::seconds kSetTimeout(30);

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return int(std::max<long>(0, left.count()));
}

}  // namespace

LineStore::LineStore(std::string where, std::function<UniqueFd()> connect,
                     std::shared_ptr<const Cancel> cancel)
    : where_(std::move(where)), connect_(std::move(connect)), cancel_(std::move(cancel)) {}

void LineStore::set(const std::string& key, const std::string& value) {
  const long id = next_id_++;
  const json request = {{"id", id}, {"op", "set"}, {"key", key}, {"value", value}};
  const json reply = json::parse(ask(request.dump(), id, kSetTimeout));
  if (!reply.value("ok", false)) refuse(reply.value("error", "the key was refused"));
}

std::string LineStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  const long id = next_id_++;
  const double seconds = double(timeout.count()) / 1000;
  const json request = {{"id", id}, {"op", "get"}, {"key", key}, {"timeout", seconds}};
  const json reply = json::parse(ask(request.dump(), id, timeout + kServerGrace));
  if (reply.value("ok", false)) return reply.value("value", "");
  const std::string error = reply.value("error", "the key was refused");
  if (error != "timeout") refuse(error);
  throw CommunicatorError(CommunicatorError::Kind::timeout,
                          "nobody set the key " + key + " in time");
}

std::string LineStore::ask(const std::string& line, long id, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!fd_) {
    // A thread that still reads from the connection that failed must have left it.
    changed_.wait(lock, [this] { return !reading_; });
    if (!fd_) fd_ = connect_();
  }
  const long connection = connection_;
  send_all(line + "\n", deadline);
  while (true) {
    check_cancel(cancel_.get());
    if (connection != connection_) refuse("the connection was lost");
    const auto reply = replies_.find(id);
    if (reply != replies_.end()) {
      std::string text = std::move(reply->second);
      replies_.erase(reply);
      return text;
    }
    if (Clock::now() >= deadline) fail("it does not answer");
    if (!reading_) {
      read_replies(lock, deadline);
    } else {
      changed_.wait_until(lock, deadline);
    }
  }
}

void LineStore::send_all(const std::string& line, Clock::time_point deadline) {
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = send(fd_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += std::size_t(n);
    } else if (errno == EAGAIN || errno == EINTR) {
      pollfd polled = {fd_.get(), POLLOUT, 0};
      if (poll(&polled, 1, milliseconds_until(deadline)) == 0) fail("it takes no requests");
    } else {
      fail(std::strerror(errno));
    }
  }
}

void LineStore::read_replies(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  const int fd = fd_.get();
  char bytes[4096];
  reading_ = true;
  lock.unlock();
  pollfd polled[] = {{fd, POLLIN, 0}, {event_of(cancel_.get()), POLLIN, 0}};
  poll(polled, 2, milliseconds_until(deadline));
  const ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
  const int error = errno;
  lock.lock();
  reading_ = false;
  changed_.notify_all();
  if (n == 0) fail("it closed the connection");
  if (n < 0) {
    if (error == EAGAIN || error == EINTR) return;
    fail(std::strerror(error));
  }
  received_.append(bytes, std::size_t(n));
  for (std::size_t end; (end = received_.find('\n')) != std::string::npos;
       received_.erase(0, end + 1)) {
    std::string line = received_.substr(0, end);
    const json parsed = json::parse(line, nullptr, false);
    if (!parsed.is_object()) fail("it answered what is not JSON");
    // What is no reply is passed over.
    const long id = parsed.value("id", 0L);
    if (id != 0) replies_[id] = std::move(line);
  }
}

void LineStore::refuse(const std::string& why) const {
  throw CommunicatorError(CommunicatorError::Kind::store, "the store at " + where_ + ": " + why);
}

void LineStore::fail(const std::string& why) {
  if (fd_ && reading_) {
    // Another thread reads from it: the number must not be given to a new file before that ends.
    shutdown(fd_.get(), SHUT_RDWR);
  } else if (fd_) {
    ++connection_;
    fd_.reset();
    received_.clear();
    replies_.clear();
    changed_.notify_all();
  }
  refuse(why);
}

}  // namespace af
