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
using Clock = std::chrono::steady_clock;

// The server answers a get at its timeout; only if it is gone or hung do we give up on our own.
constexpr std::chrono::seconds kServerGrace(5);
constexpr std::chrono::seconds kSetTimeout(30);

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return int(std::max<long>(0, left.count()));
}

}  // namespace

LineStore::LineStore(std::string where, std::function<UniqueFd()> connect)
    : where_(std::move(where)), connect_(std::move(connect)) {}

void LineStore::set(const std::string& key, const std::string& value) {
  std::lock_guard lock(mutex_);
  const long id = next_id_++;
  const json request = {{"id", id}, {"op", "set"}, {"key", key}, {"value", value}};
  const json reply = json::parse(ask(request.dump(), id, kSetTimeout));
  if (!reply.value("ok", false)) fail(reply.value("error", "the key was refused"));
}

std::string LineStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  const long id = next_id_++;
  const double seconds = double(timeout.count()) / 1000;
  const json request = {{"id", id}, {"op", "get"}, {"key", key}, {"timeout", seconds}};
  const json reply = json::parse(ask(request.dump(), id, timeout + kServerGrace));
  if (reply.value("ok", false)) return reply.value("value", "");
  const std::string error = reply.value("error", "the key was refused");
  if (error != "timeout") fail(error);
  throw CommunicatorError(CommunicatorError::Kind::timeout,
                          "nobody set the key " + key + " in time");
}

std::string LineStore::ask(const std::string& line, long id, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  if (!fd_) fd_ = connect_();
  send_all(line + "\n");
  while (true) {
    const std::string reply = next_line(deadline);
    const json parsed = json::parse(reply, nullptr, false);
    if (!parsed.is_object()) fail("it answered what is not JSON");
    // A reply to a request that was given up is passed over; so is what is no reply at all.
    if (parsed.value("id", 0L) == id) return reply;
  }
}

void LineStore::send_all(const std::string& line) {
  std::size_t sent = 0;
  const auto deadline = Clock::now() + kSetTimeout;
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

std::string LineStore::next_line(Clock::time_point deadline) {
  while (true) {
    const std::size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t n = recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n > 0) {
      received_.append(bytes, std::size_t(n));
      continue;
    }
    if (n == 0) fail("it closed the connection");
    if (errno != EAGAIN && errno != EINTR) fail(std::strerror(errno));
    pollfd polled = {fd_.get(), POLLIN, 0};
    if (poll(&polled, 1, milliseconds_until(deadline)) == 0) fail("it does not answer");
  }
}

void LineStore::fail(const std::string& why) {
  fd_.reset();
  received_.clear();
  throw CommunicatorError(CommunicatorError::Kind::store, "the store at " + where_ + ": " + why);
}

}  // namespace af
