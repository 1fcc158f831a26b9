// SPDX-License-Identifier: Apache-2.0
// Serves a table of keys over TCP, in a thread of rank 0.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <string>
#include <thread>

#include "common/unique_fd.h"

namespace af {

class StoreServer {
 public:
  // Listens at once on that port (0: any), on all addresses. Throws CommunicatorError (system).
  explicit StoreServer(int port);
  // Serves until no client is connected, at most for 5 s more.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    long id;
    std::string key;
    Clock::time_point deadline;
  };
  struct Client {
    UniqueFd fd;
    std::string received;
    std::string to_send;
    std::list<Waiting> waiting;
  };

  void serve();
  void read_from(Client& client);
  void handle(Client& client, const std::string& line);
  void answer_waiting(Client& client);
  void flush(Client& client);
  int poll_timeout() const;

  int port_ = 0;
  UniqueFd listener_;
  UniqueFd stop_;
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  Clock::time_point close_at_ = Clock::time_point::max();
  std::thread thread_;
};

}  // namespace af
