// SPDX-License-Identifier: Apache-2.0
// A fake of the agents and the coordinator of an elastic run: speaks docs/session-protocol.md to
// any number of clients (ranks that are threads or processes), each on a socket of its own, with
// one table of keys. It decides nothing: the test says what it says.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/unique_fd.h"

namespace af::test {

class FakeAgent {
 public:
  using Json = nlohmann::json;

  explicit FakeAgent(int clients);
  ~FakeAgent();
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;

  // AF_SOCKET of a client.
  std::string socket(int client) const;

  // The next line with that `op` that the client has sent on any connection and this has not given
  // yet. Throws std::runtime_error after 30 s.
  Json await(int client, const std::string& op);
  // Until it has done its first step in that world.
  void await_first_step(int client, std::uint64_t generation);
  // All lines that have come from it so far, set and get left out.
  std::vector<Json> lines(int client) const;
  // Blocks until a rank asks for a key that contains `part`, and nobody has set it.
  void await_get(const std::string& part);

  // On the client's control connection.
  void say(int client, const Json& event);
  void say_line(int client, const std::string& line);

  // Awaits the arrival of all of them and gives them world `generation`, ranks in this order.
  void form(std::uint64_t generation, const std::vector<int>& clients,
            const Json& environment = {});
  // The same, without waiting: for those that have arrived before.
  void send_world(std::uint64_t generation, const std::vector<int>& clients,
                  const Json& environment = {});
  // Says `lost` to those clients and answers what is asked for that world's keys, now and later.
  void lose(std::uint64_t generation, const std::vector<int>& clients, const std::string& why);
  // The client's agent goes: its connections end and its socket takes no more.
  void close(int client);
  // Connections of the client that are open.
  int connections(int client) const;
  // Stops reading what the client sends, so that its socket fills, until called with false.
  void neglect(int client, bool yes);

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Json id;
    std::string key;
    Clock::time_point deadline;
  };
  struct Connection {
    int client;
    UniqueFd fd;
    std::string received;
    std::string to_send;
    std::list<Waiting> waiting;
    bool control = false;
  };
  struct Client {
    std::string name;
    UniqueFd listener;
    std::vector<Json> lines;
    std::map<std::string, std::size_t> given;  // by op: lines that await() has passed
    bool neglected = false;
    // As of its last arrival, and of the world it got last.
    int rank = -1;
    std::int64_t step = -1;
    bool in_step = false;
    int was = -1;
  };

  void serve();
  void read_from(Connection& connection);
  void handle(Connection& connection, const std::string& line);
  void answer_waiting(Connection& connection);
  bool ended(const std::string& key) const;
  void wake();

  UniqueFd wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<Client> clients_;
  std::list<Connection> connections_;
  std::map<std::string, std::string> keys_;
  std::set<std::uint64_t> ended_;
  std::thread thread_;
};

}  // namespace af::test
