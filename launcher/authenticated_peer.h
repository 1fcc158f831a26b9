// SPDX-License-Identifier: Apache-2.0
// Connections between the parts of one run (front, coordinator, agents): TCP, and each side has
// proved to the other that it knows the run's secret before the first message.
//
//   server: {"challenge": A}
//   client: {"hello": {...}, "nonce": B, "answer": keyed_answer(secret, "client", A, B)}
//   server: {"proof": keyed_answer(secret, "server", B, A)}
//
// Messages after that are one JSON object a line. They are neither encrypted nor signed: the
// network between the nodes is trusted not to change packets, as it is for NCCL, Gloo and MPI.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "launcher/line_connection.h"

namespace af {

struct PeerAddress {
  std::string address;  // numeric
  uint16_t port = 0;
};
// "10.0.0.1:4711", "[fe80::1]:4711". parse throws Error.
std::string to_text(const PeerAddress& peer);
PeerAddress parse_peer_address(const std::string& text);

// Listens on all addresses, on a port that the kernel picks, and gives each peer that has proved
// itself, with what it said in hello. Strangers are closed; a peer has 10 s for its answer.
class AuthenticatedListener {
 public:
  using OnPeer = std::function<void(const nlohmann::json& hello, std::shared_ptr<LineConnection>)>;

  // Throws Error if it cannot listen.
  AuthenticatedListener(asio::io_context& io, std::string secret, OnPeer on_peer);
  ~AuthenticatedListener();
  uint16_t port() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Connects and proves; calls exactly one of the two. Tries again while nobody listens, until
// `patience` is over; `refused_patience`: where the peer's machine says that nobody does.
void connect_authenticated(asio::io_context& io, const PeerAddress& peer, const std::string& secret,
                           const nlohmann::json& hello, std::chrono::milliseconds patience,
                           std::function<void(std::shared_ptr<LineConnection>)> on_ready,
                           std::function<void(const std::string& reason)> on_failure,
                           std::optional<std::chrono::milliseconds> refused_patience = {});

}  // namespace af
