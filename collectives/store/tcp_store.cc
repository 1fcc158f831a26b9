// SPDX-License-Identifier: Apache-2.0
// The store of ranks without af-launch: rank 0 serves it at host:port.
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "af/communicator.h"
#include "collectives/local/socket.h"
#include "collectives/store/line_store.h"
#include "collectives/store/store_server.h"

namespace af {
namespace {

using Clock = std::chrono::steady_clock;

// Tries until the deadline: rank 0 may start later than the others.
UniqueFd connect_until(const std::string& host, int port, Clock::time_point deadline) {
  auto pause = std::chrono::milliseconds(5);
  while (true) {
    std::string why;
    try {
      UniqueFd fd = local::begin_connect_tcp(host, port);
      pollfd polled = {fd.get(), POLLOUT, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (poll(&polled, 1, int(std::max<long>(left.count(), 1))) == 1) {
        const int error = local::connect_result(fd.get());
        if (error == 0) {
          local::tune_tcp(fd.get());
          return fd;
        }
        why = std::strerror(error);
      } else {
        why = "no answer";
      }
    } catch (const CommunicatorError& error) {
      why = error.what();
    }
    if (Clock::now() + pause >= deadline) {
      std::string what = "cannot reach rank 0's store at " + host;
      what.append(" port ").append(std::to_string(port)).append(": ").append(why);
      throw CommunicatorError(CommunicatorError::Kind::timeout, what, {0});
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

class TcpStore : public Store {
 public:
  TcpStore(const std::string& host, int port, int rank, std::chrono::milliseconds timeout)
      : server_(rank == 0 ? std::make_unique<StoreServer>(port) : nullptr),
        client_(std::make_unique<LineStore>(
            host + " port " + std::to_string(port),
            [host, port, timeout] { return connect_until(host, port, Clock::now() + timeout); })) {}
  ~TcpStore() override {
    client_.reset();  // else the server would wait for our own connection
    server_.reset();
  }

  void set(const std::string& key, const std::string& value) override { client_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return client_->get(key, timeout);
  }

 private:
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<LineStore> client_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const std::string& host, int port, int rank,
                                      std::chrono::milliseconds timeout) {
  return std::make_shared<TcpStore>(host, port, rank, timeout);
}

}  // namespace af
