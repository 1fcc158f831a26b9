// SPDX-License-Identifier: Apache-2.0
#include "launcher/session_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include "common/error.h"

namespace af {

using asio::local::stream_protocol;
using nlohmann::json;

struct SessionServer::State : std::enable_shared_from_this<State> {
  State(asio::io_context& io, OnRequest callback) : acceptor(io), on_request(std::move(callback)) {}

  void accept() {
    acceptor.async_accept(
        [self = shared_from_this()](const asio::error_code& error, stream_protocol::socket socket) {
          if (!self->acceptor.is_open() || error == asio::error::operation_aborted) return;
          if (!error) self->serve(std::move(socket));
          self->accept();
        });
  }

  void serve(stream_protocol::socket socket) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
    if (peer.uid != ::geteuid() && peer.uid != 0) return;
    auto self_reference = std::make_shared<std::weak_ptr<LineConnection>>();
    auto connection = LineConnection::start(
        LineConnection::Socket(std::move(socket)),
        [self = shared_from_this(), self_reference](const std::string& line) {
          self->request(line, *self_reference);
        },
        nullptr);
    *self_reference = connection;
  }

  void request(const std::string& line, const std::weak_ptr<LineConnection>& client) {
    const json message = json::parse(line, nullptr, false);
    const Reply reply = [client](const json& answer) {
      if (const auto connection = client.lock())
        connection->send(answer.dump(-1, ' ', false, json::error_handler_t::replace));
    };
    if (!message.is_object() || !message.contains("op"))
      return reply({{"ok", false}, {"error", "not a JSON object with an \"op\""}});
    if (on_request) on_request(message, reply);
  }

  stream_protocol::acceptor acceptor;
  OnRequest on_request;
};

SessionServer::SessionServer(asio::io_context& io, const std::string& name, OnRequest on_request)
    : state_(std::make_shared<State>(io, std::move(on_request))) {
  asio::error_code error;
  const stream_protocol::endpoint endpoint(std::string(1, '\0') + name);
  state_->acceptor.open(endpoint.protocol(), error);
  if (!error) state_->acceptor.bind(endpoint, error);
  if (!error) state_->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) throw Error::format("cannot listen on the socket @{}: {}", name, error.message());
  state_->accept();
}

SessionServer::~SessionServer() {
  asio::error_code ignored;
  state_->acceptor.close(ignored);
  state_->on_request = nullptr;
}

}  // namespace af
