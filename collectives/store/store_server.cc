// SPDX-License-Identifier: Apache-2.0
#include "collectives/store/store_server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "collectives/local/socket.h"

namespace af {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kFarewell(5);
constexpr std::size_t kLongestLine = 1 << 20;  // a stranger must not fill our memory
constexpr std::size_t kMostClients = 4096;

}  // namespace

StoreServer::StoreServer(int port) : stop_(eventfd(0, EFD_CLOEXEC)) {
  local::TcpListener listener = local::listen_tcp(port);
  listener_ = std::move(listener.fd);
  port_ = listener.port;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "af-store");
    serve();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreServer::~StoreServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void StoreServer::serve() {
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (close_at_ != Clock::time_point::max()) polled[0].fd = -1;
    for (const Client& client : clients_) {
      polled.push_back(
          {client.fd.get(), short(client.to_send.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    poll(polled.data(), polled.size(), poll_timeout());
    if (polled[0].revents != 0) close_at_ = Clock::now() + kFarewell;
    if (clients_.size() < kMostClients) {
      while (UniqueFd fd = local::accept_from(listener_.get())) {
        local::tune_tcp(fd.get());
        clients_.emplace_back().fd = std::move(fd);
      }
    }
    for (Client& client : clients_) read_from(client);
    for (Client& client : clients_) {
      if (client.fd) answer_waiting(client);
      if (client.fd) flush(client);
    }
    clients_.remove_if([](const Client& client) { return !client.fd; });
    if (close_at_ != Clock::time_point::max() && (clients_.empty() || Clock::now() >= close_at_)) {
      return;
    }
  }
}

void StoreServer::read_from(Client& client) {
  char bytes[4096];
  while (client.fd) {
    const ssize_t n = recv(client.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n <= 0 || client.received.size() > kLongestLine) {
      client.fd.reset();
      return;
    }
    client.received.append(bytes, std::size_t(n));
  }
  std::size_t begin = 0;
  for (std::size_t end; client.fd && (end = client.received.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    handle(client, client.received.substr(begin, end - begin));
  }
  client.received.erase(0, begin);
}

void StoreServer::handle(Client& client, const std::string& line) {
  const json request = json::parse(line, nullptr, false);
  try {
    const long id = request.at("id").get<long>();
    const std::string key = request.at("key").get<std::string>();
    if (request.at("op") == "set") {
      values_[key] = request.at("value").get<std::string>();
      client.to_send += json{{"id", id}, {"ok", true}}.dump() + "\n";
    } else {
      // A get, answered when the key is there.
      const double seconds = std::clamp(request.at("timeout").get<double>(), 0.0, 1e6);
      client.waiting.push_back({id, key,
                                Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds))});
    }
  } catch (const json::exception&) {
    client.fd.reset();  // not one of ours
  }
}

void StoreServer::answer_waiting(Client& client) {
  const auto now = Clock::now();
  client.waiting.remove_if([&](const Waiting& one) {
    const auto found = values_.find(one.key);
    if (found != values_.end()) {
      client.to_send += json{{"id", one.id}, {"ok", true}, {"value", found->second}}.dump() + "\n";
      return true;
    }
    if (now < one.deadline) return false;
    client.to_send += json{{"id", one.id}, {"ok", false}, {"error", "timeout"}}.dump() + "\n";
    return true;
  });
}

void StoreServer::flush(Client& client) {
  while (!client.to_send.empty()) {
    const ssize_t n = send(client.fd.get(), client.to_send.data(), client.to_send.size(),
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      client.fd.reset();
      return;
    }
    client.to_send.erase(0, std::size_t(n));
  }
}

int StoreServer::poll_timeout() const {
  auto next = close_at_;
  for (const Client& client : clients_) {
    for (const Waiting& one : client.waiting) next = std::min(next, one.deadline);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return int(std::clamp<long>(left.count(), 0, 60'000));
}

}  // namespace af
