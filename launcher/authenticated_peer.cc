// SPDX-License-Identifier: Apache-2.0
#include "launcher/authenticated_peer.h"

#include <fmt/core.h>
#include <netinet/tcp.h>
#include <asio/connect.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/steady_timer.hpp>

#include <charconv>

#include "common/error.h"
#include "launcher/challenge.h"

namespace af {
namespace {

using asio::ip::tcp;
using nlohmann::json;
constexpr auto kAnswerWithin = std::chrono::seconds(10);
constexpr auto kRetryAfter = std::chrono::milliseconds(50);

json parse(const std::string& line) {
  return json::parse(line, nullptr, /*exceptions=*/false);
}

std::string text_of(const json& message, const char* name) {
  if (!message.is_object()) return "";
  const auto found = message.find(name);
  return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}

// A node that loses power sends no FIN: without keep-alive its connection would look open for
// hours.
void set_options(LineConnection::Socket& socket) {
  asio::error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  using Seconds = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Probes = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  socket.set_option(Seconds(10), ignored);
  socket.set_option(Interval(5), ignored);
  socket.set_option(Probes(3), ignored);
  // Keep-alive is silent while data waits for its acknowledgement: that alone would take 15
  // minutes.
  using Unacknowledged = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  socket.set_option(Unacknowledged(30 * 1000), ignored);
}

}  // namespace

std::string to_text(const PeerAddress& peer) {
  const bool v6 = peer.address.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", peer.address, peer.port)
            : fmt::format("{}:{}", peer.address, peer.port);
}

PeerAddress parse_peer_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  PeerAddress peer;
  if (colon != std::string::npos) {
    peer.address = text.substr(0, colon);
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + colon + 1, end, peer.port);
    if (result.ec != std::errc() || result.ptr != end) peer.port = 0;
  }
  if (peer.address.starts_with('[') && peer.address.ends_with(']'))
    peer.address = peer.address.substr(1, peer.address.size() - 2);
  if (peer.port == 0 || peer.address.empty()) throw Error::format("'{}' is no ADDRESS:PORT", text);
  return peer;
}

struct AuthenticatedListener::State : std::enable_shared_from_this<State> {
  State(asio::io_context& context, std::string key, OnPeer callback)
      : io(context),
        acceptor(context),
        retry(context),
        secret(std::move(key)),
        on_peer(std::move(callback)) {}

  void listen() {
    asio::error_code error;
    // Both IP versions through one socket; nodes without IPv6 get IPv4 alone.
    acceptor.open(tcp::v6(), error);
    if (!error) acceptor.set_option(asio::ip::v6_only(false), error);
    if (!error) acceptor.bind({tcp::v6(), 0}, error);
    if (error) {
      asio::error_code ignored;
      acceptor.close(ignored);
      acceptor.open(tcp::v4(), error);
      if (!error) acceptor.bind({tcp::v4(), 0}, error);
    }
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) throw Error::format("cannot listen for the agents: {}", error.message());
  }

  void accept() {
    acceptor.async_accept(
        [self = shared_from_this()](const asio::error_code& error, tcp::socket s) {
          if (error == asio::error::operation_aborted || !self->acceptor.is_open()) return;
          if (!error) {
            self->challenge(std::move(s));
            return self->accept();
          }
          // Out of descriptors, for one: at once it would fail again, and for ever.
          self->retry.expires_after(kRetryAfter);
          self->retry.async_wait([self](const asio::error_code& cancelled) {
            if (!cancelled && self->acceptor.is_open()) self->accept();
          });
        });
  }

  void challenge(tcp::socket accepted) {
    LineConnection::Socket socket(std::move(accepted));
    set_options(socket);
    const std::string nonce = random_hex(16);
    auto timer = std::make_shared<asio::steady_timer>(io, kAnswerWithin);
    // The callbacks hold the connection weakly: it keeps itself alive while it is open.
    auto self_reference = std::make_shared<std::weak_ptr<LineConnection>>();
    auto connection = LineConnection::start(
        std::move(socket),
        [self = shared_from_this(), nonce, timer, self_reference](const std::string& line) {
          timer->cancel();
          if (const auto peer = self_reference->lock()) self->check(peer, nonce, line);
        },
        [timer](const std::string&) { timer->cancel(); });
    *self_reference = connection;
    timer->async_wait([self_reference](const asio::error_code& error) {
      const auto peer = self_reference->lock();
      if (!error && peer) peer->close();
    });
    connection->send(json{{"challenge", nonce}}.dump());
  }

  void check(const std::shared_ptr<LineConnection>& connection, const std::string& nonce,
             const std::string& line) {
    const json message = parse(line);
    const std::string theirs = text_of(message, "nonce");
    if (theirs.empty() ||
        !same_answer(text_of(message, "answer"), keyed_answer(secret, "client", nonce, theirs)))
      return connection->close();
    connection->send(json{{"proof", keyed_answer(secret, "server", theirs, nonce)}}.dump());
    connection->hand_over(nullptr, nullptr);
    if (on_peer) on_peer(message.value("hello", json::object()), connection);
  }

  asio::io_context& io;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::string secret;
  OnPeer on_peer;
};

AuthenticatedListener::AuthenticatedListener(asio::io_context& io, std::string secret,
                                             OnPeer on_peer)
    : state_(std::make_shared<State>(io, std::move(secret), std::move(on_peer))) {
  state_->listen();
  state_->accept();
}

AuthenticatedListener::~AuthenticatedListener() {
  asio::error_code ignored;
  state_->acceptor.close(ignored);
  state_->retry.cancel();
  state_->on_peer = nullptr;
}

uint16_t AuthenticatedListener::port() const {
  return state_->acceptor.local_endpoint().port();
}

namespace {

// One attempt after the other until the deadline.
struct Connecting : std::enable_shared_from_this<Connecting> {
  Connecting(asio::io_context& context) : io(context), socket(context), timer(context) {}

  void attempt() {
    asio::error_code error;
    const auto address = asio::ip::make_address(peer.address, error);
    if (error) return finish("it is no address");
    socket = tcp::socket(io);
    // A firewall that drops packets gives no answer for two minutes.
    timer.expires_at(deadline);
    timer.async_wait([self = shared_from_this()](asio::error_code cancelled) {
      if (cancelled || self->done) return;
      self->finish("no answer");
      asio::error_code ignored;
      self->socket.close(ignored);
    });
    socket.async_connect({address, peer.port}, [self = shared_from_this()](asio::error_code e) {
      if (self->done) return;
      if (!e) return self->prove();
      const bool refused = e == asio::error::connection_refused;
      if (std::chrono::steady_clock::now() + kRetryAfter >
          (refused ? self->refused_deadline : self->deadline))
        return self->finish(e.message());
      self->timer.expires_after(kRetryAfter);
      self->timer.async_wait([self](asio::error_code cancelled) {
        if (!cancelled && !self->done) self->attempt();
      });
    });
  }

  void prove() {
    timer.expires_after(kAnswerWithin);
    timer.async_wait([self = shared_from_this()](asio::error_code cancelled) {
      if (!cancelled) self->finish("it does not answer");
    });
    LineConnection::Socket generic(std::move(socket));
    set_options(generic);
    connection = LineConnection::start(
        std::move(generic),
        [self = shared_from_this()](const std::string& line) { self->on_line(line); },
        [self = shared_from_this()](const std::string& reason) {
          self->finish(reason == "closed" ? "it refused the run's secret" : reason);
        });
  }

  void on_line(const std::string& line) {
    const json message = parse(line);
    const std::string challenge = text_of(message, "challenge");
    if (!challenge.empty() && their_nonce.empty()) {
      their_nonce = challenge;
      connection->send(json{{"hello", hello},
                            {"nonce", my_nonce},
                            {"answer", keyed_answer(secret, "client", their_nonce, my_nonce)}}
                           .dump());
      return;
    }
    if (their_nonce.empty() || !same_answer(text_of(message, "proof"),
                                            keyed_answer(secret, "server", my_nonce, their_nonce)))
      return finish("it does not know the run's secret");
    done = true;
    timer.cancel();
    const auto ready = std::exchange(connection, nullptr);
    ready->hand_over(nullptr, nullptr);
    on_ready(ready);
  }

  void finish(const std::string& reason) {
    if (std::exchange(done, true)) return;
    timer.cancel();
    if (connection) std::exchange(connection, nullptr)->close();
    on_failure(reason);
  }

  asio::io_context& io;
  tcp::socket socket;
  asio::steady_timer timer;
  PeerAddress peer;
  std::string secret, their_nonce, my_nonce = random_hex(16);
  json hello;
  std::chrono::steady_clock::time_point deadline, refused_deadline;
  std::function<void(std::shared_ptr<LineConnection>)> on_ready;
  std::function<void(const std::string&)> on_failure;
  std::shared_ptr<LineConnection> connection;
  bool done = false;
};

}  // namespace

void connect_authenticated(asio::io_context& io, const PeerAddress& peer, const std::string& secret,
                           const nlohmann::json& hello, std::chrono::milliseconds patience,
                           std::function<void(std::shared_ptr<LineConnection>)> on_ready,
                           std::function<void(const std::string& reason)> on_failure,
                           std::optional<std::chrono::milliseconds> refused_patience) {
  auto connecting = std::make_shared<Connecting>(io);
  connecting->peer = peer;
  connecting->secret = secret;
  connecting->hello = hello;
  const auto now = std::chrono::steady_clock::now();
  connecting->deadline = now + patience;
  connecting->refused_deadline = now + refused_patience.value_or(patience);
  connecting->on_ready = std::move(on_ready);
  connecting->on_failure = std::move(on_failure);
  connecting->attempt();
}

}  // namespace af
