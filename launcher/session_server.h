// SPDX-License-Identifier: Apache-2.0
// The agent's end of the session protocol (docs/session-protocol.md): an abstract Unix socket for
// each rank, one JSON object per line. Node-local, needs no file, and survives a private /tmp.
#pragma once

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/line_connection.h"

namespace af {

class SessionServer {
 public:
  // `reply` may be called later, and does nothing once the client has gone. One-way operations get
  // one too and leave it alone.
  using Reply = std::function<void(const nlohmann::json&)>;
  using OnRequest = std::function<void(const nlohmann::json& request, Reply reply)>;

  // `name` is without the '@'. Only processes of this user are listened to: abstract sockets have
  // no file mode. Throws Error if the name cannot be bound.
  SessionServer(asio::io_context& io, const std::string& name, OnRequest on_request);
  ~SessionServer();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace af
