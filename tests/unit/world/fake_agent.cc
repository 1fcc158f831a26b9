// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/world/fake_agent.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

#include "collectives/local/socket.h"

namespace af::test {
namespace {

constexpr std::chrono::seconds kPatience(30);

}  // namespace

FakeAgent::FakeAgent(int clients)
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), clients_(std::size_t(clients)) {
  static std::atomic<int> made{0};
  const std::string prefix =
      "af-fake-" + std::to_string(getpid()) + "-" + std::to_string(made++) + "-";
  for (int i = 0; i < clients; ++i) {
    Client& client = clients_[std::size_t(i)];
    client.name = prefix + std::to_string(i);
    client.listener = local::listen_unix(client.name);
  }
  thread_ = std::thread([this] { serve(); });
}

FakeAgent::~FakeAgent() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void FakeAgent::wake() {
  eventfd_write(wake_.get(), 1);
}

std::string FakeAgent::socket(int client) const {
  return "@" + clients_[std::size_t(client)].name;
}

FakeAgent::Json FakeAgent::await(int client, const std::string& op) {
  std::unique_lock lock(mutex_);
  Client& one = clients_[std::size_t(client)];
  const auto deadline = Clock::now() + kPatience;
  while (true) {
    std::size_t& given = one.given[op];
    for (; given < one.lines.size(); ++given) {
      if (one.lines[given].value("op", "") == op) return one.lines[given++];
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      throw std::runtime_error("client " + std::to_string(client) + " has not said " + op);
    }
  }
}

void FakeAgent::await_first_step(int client, std::uint64_t generation) {
  while (await(client, "first_step")["generation"] != generation) {
  }
}

std::vector<FakeAgent::Json> FakeAgent::lines(int client) const {
  std::lock_guard lock(mutex_);
  return clients_[std::size_t(client)].lines;
}

void FakeAgent::await_get(const std::string& part) {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, kPatience, [&] {
    for (const Connection& connection : connections_) {
      for (const Waiting& one : connection.waiting) {
        if (one.key.find(part) != std::string::npos) return true;
      }
    }
    return false;
  });
  if (!came) throw std::runtime_error("nobody asks for a key with " + part);
}

void FakeAgent::say(int client, const Json& event) {
  say_line(client, event.dump());
}

void FakeAgent::say_line(int client, const std::string& line) {
  {
    std::lock_guard lock(mutex_);
    for (Connection& connection : connections_) {
      if (connection.client == client && connection.control) connection.to_send += line + "\n";
    }
  }
  wake();
}

void FakeAgent::form(std::uint64_t generation, const std::vector<int>& clients,
                     const Json& environment) {
  for (int client : clients) await(client, "arrive");
  send_world(generation, clients, environment);
}

void FakeAgent::send_world(std::uint64_t generation, const std::vector<int>& clients,
                           const Json& environment) {
  Json members = Json::array();
  {
    std::lock_guard lock(mutex_);
    for (std::size_t rank = 0; rank < clients.size(); ++rank) {
      Client& client = clients_[std::size_t(clients[rank])];
      members.push_back({{"was", client.was}, {"step", client.step}, {"in_step", client.in_step}});
      client.rank = int(rank);
    }
  }
  Json all = environment.is_object() ? environment : Json::object();
  for (std::size_t rank = 0; rank < clients.size(); ++rank) {
    all["RANK"] = std::to_string(rank);
    all["WORLD_SIZE"] = std::to_string(clients.size());
    say(clients[rank], {{"event", "world"},
                        {"generation", generation},
                        {"rank", rank},
                        {"world_size", clients.size()},
                        {"members", members},
                        {"environment", all}});
  }
}

void FakeAgent::lose(std::uint64_t generation, const std::vector<int>& clients,
                     const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    ended_.insert(generation);
  }
  wake();
  for (int client : clients) {
    say(client, {{"event", "lost"}, {"generation", generation}, {"why", why}});
  }
}

void FakeAgent::close(int client) {
  std::lock_guard lock(mutex_);
  for (Connection& connection : connections_) {
    // The thread may be in poll() on it: it sees the end, and drops it.
    if (connection.client == client) shutdown(connection.fd.get(), SHUT_RDWR);
  }
  clients_[std::size_t(client)].listener.reset();
}

int FakeAgent::connections(int client) const {
  std::lock_guard lock(mutex_);
  int count = 0;
  for (const Connection& connection : connections_) count += connection.client == client ? 1 : 0;
  return count;
}

void FakeAgent::neglect(int client, bool yes) {
  {
    std::lock_guard lock(mutex_);
    clients_[std::size_t(client)].neglected = yes;
  }
  wake();
}

void FakeAgent::serve() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    for (const Client& client : clients_) polled.push_back({client.listener.get(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      const bool deaf = clients_[std::size_t(connection.client)].neglected;
      polled.push_back({connection.fd.get(),
                        short((deaf ? 0 : POLLIN) | (connection.to_send.empty() ? 0 : POLLOUT)),
                        0});
    }
    lock.unlock();
    poll(polled.data(), polled.size(), 1000);
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
    lock.lock();
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (!clients_[i].listener) continue;
      while (UniqueFd fd = local::accept_from(clients_[i].listener.get())) {
        connections_.emplace_back().client = int(i);
        connections_.back().fd = std::move(fd);
      }
    }
    for (Connection& connection : connections_) {
      if (!clients_[std::size_t(connection.client)].neglected) read_from(connection);
    }
    // A set of one may answer a get of another.
    for (Connection& connection : connections_) {
      answer_waiting(connection);
      while (connection.fd && !connection.to_send.empty()) {
        const ssize_t n = send(connection.fd.get(), connection.to_send.data(),
                               connection.to_send.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
          connection.fd.reset();
          break;
        }
        connection.to_send.erase(0, std::size_t(n));
      }
    }
    connections_.remove_if([](const Connection& connection) { return !connection.fd; });
    changed_.notify_all();
  }
}

void FakeAgent::read_from(Connection& connection) {
  char bytes[4096];
  while (connection.fd) {
    const ssize_t n = recv(connection.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n <= 0) {
      connection.fd.reset();
      break;
    }
    connection.received.append(bytes, std::size_t(n));
  }
  std::size_t begin = 0;
  for (std::size_t end; (end = connection.received.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    handle(connection, connection.received.substr(begin, end - begin));
  }
  connection.received.erase(0, begin);
}

void FakeAgent::handle(Connection& connection, const std::string& line) {
  const Json said = Json::parse(line, nullptr, false);
  if (!said.is_object()) {
    clients_[std::size_t(connection.client)].lines.push_back({{"op", "broken"}, {"line", line}});
    return;
  }
  const std::string op = said.value("op", "");
  if (op == "set") {
    keys_[said["key"]] = said["value"];
    connection.to_send += Json{{"id", said["id"]}, {"ok", true}}.dump() + "\n";
    return;
  }
  if (op == "get") {
    const double seconds = said.value("timeout", 300.0);
    connection.waiting.push_back(
        {said["id"], said["key"],
         Clock::now() + std::chrono::milliseconds(std::int64_t(seconds * 1000))});
    return;
  }
  Client& client = clients_[std::size_t(connection.client)];
  if (op == "hello") connection.control = true;
  if (op == "arrive") {
    client.was = said["generation"] == -1 ? -1 : client.rank;
    client.step = said["step"];
    client.in_step = said["in_step"];
  }
  client.lines.push_back(said);
}

bool FakeAgent::ended(const std::string& key) const {
  for (const std::uint64_t generation : ended_) {
    if (key.find("/" + std::to_string(generation) + "/") != std::string::npos) return true;
  }
  return false;
}

void FakeAgent::answer_waiting(Connection& connection) {
  connection.waiting.remove_if([&](const Waiting& one) {
    Json reply = {{"id", one.id}};
    const auto found = keys_.find(one.key);
    if (ended(one.key)) {
      reply.update({{"ok", false}, {"error", "the world has ended"}});
    } else if (found != keys_.end()) {
      reply.update({{"ok", true}, {"value", found->second}});
    } else if (Clock::now() >= one.deadline) {
      reply.update({{"ok", false}, {"error", "timeout"}});
    } else {
      return false;
    }
    connection.to_send += reply.dump() + "\n";
    return true;
  });
}

}  // namespace af::test
