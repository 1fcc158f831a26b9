// SPDX-License-Identifier: Apache-2.0
#include "af/train/session.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "common/unique_fd.h"

namespace af::train {

using nlohmann::json;

namespace {

constexpr size_t kMostKept = 1 << 20;

UniqueFd connect_to(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.empty() || socket.size() >= sizeof address.sun_path) return UniqueFd();
  std::memcpy(address.sun_path, socket.data(), socket.size());
  // An abstract name begins with a NUL, and its length says where it ends.
  socklen_t length = offsetof(sockaddr_un, sun_path) + socket.size();
  if (socket[0] == '@')
    address.sun_path[0] = '\0';
  else
    ++length;
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    fprintf(stderr, "af: no reports to the launcher: cannot connect to %s: %s\n", socket.c_str(),
            strerror(errno));
    return UniqueFd();
  }
  return fd;
}

}  // namespace

struct Session::Impl {
  std::mutex mutex;
  UniqueFd fd;
  pid_t opened_by = ::getpid();
  std::string pending;  // whole lines, of which the first may have been sent in part

  void send(const json& line) {
    const std::lock_guard lock(mutex);
    if (!fd || ::getpid() != opened_by) return;
    // "replace": a path need not be UTF-8, and dump() would throw.
    std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    flush();
    if (pending.size() + text.size() <= kMostKept) pending += text;
    flush();
  }

  void flush() {
    while (fd && !pending.empty()) {
      const ssize_t n =
          ::send(fd.get(), pending.data(), pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n < 0) {
        fd.reset();  // the agent is gone, and with it soon this rank
        pending.clear();
        return;
      }
      pending.erase(0, static_cast<size_t>(n));
    }
  }
};

Session Session::from_environment() {
  const char* socket = std::getenv("AF_SOCKET");
  return Session(socket != nullptr ? socket : "");
}

Session::Session(const std::string& socket) : impl_(std::make_unique<Impl>()) {
  if (!socket.empty()) impl_->fd = connect_to(socket);
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

bool Session::connected() const {
  return static_cast<bool>(impl_->fd);
}

void Session::report(int64_t step, int64_t epoch, const std::map<std::string, double>& metrics) {
  impl_->send({{"op", "report"}, {"step", step}, {"epoch", epoch}, {"metrics", metrics}});
}

void Session::checkpoint(const std::string& path, int64_t step, double seconds) {
  impl_->send({{"op", "checkpoint"}, {"path", path}, {"step", step}, {"seconds", seconds}});
}

}  // namespace af::train
