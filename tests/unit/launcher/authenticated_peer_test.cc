// SPDX-License-Identifier: Apache-2.0
// Real sockets on loopback: only who knows the secret gets in, and only to who knows it.
#include "launcher/authenticated_peer.h"

#include <gtest/gtest.h>
#include <asio/read_until.hpp>
#include <asio/write.hpp>

#include <optional>
#include <thread>

#include "common/error.h"
#include "launcher/challenge.h"

namespace af {
namespace {

using asio::ip::tcp;
using nlohmann::json;
using std::chrono::milliseconds;

struct Outcome {
  std::shared_ptr<LineConnection> ready;
  std::string failure;
};

Outcome connect(asio::io_context& io, uint16_t port, const std::string& secret) {
  Outcome outcome;
  bool done = false;
  connect_authenticated(
      io, {"127.0.0.1", port}, secret, {{"task", 3}}, milliseconds(200),
      [&](std::shared_ptr<LineConnection> connection) {
        outcome.ready = std::move(connection);
        done = true;
      },
      [&](const std::string& reason) {
        outcome.failure = reason;
        done = true;
      });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done && std::chrono::steady_clock::now() < deadline) io.run_one_for(milliseconds(50));
  return outcome;
}

TEST(AuthenticatedPeer, MeetsAndTalks) {
  asio::io_context io;
  std::optional<json> hello;
  std::string heard;
  AuthenticatedListener listener(io, "s3cret", [&](const json& said, auto connection) {
    hello = said;
    connection->hand_over([&](const std::string& line) { heard = line; }, nullptr);
  });
  const Outcome outcome = connect(io, listener.port(), "s3cret");
  ASSERT_TRUE(outcome.ready) << outcome.failure;
  outcome.ready->send("a line");
  while (heard.empty()) io.run_one_for(std::chrono::seconds(5));
  EXPECT_EQ(heard, "a line");
  EXPECT_EQ((*hello)["task"], 3);
}

TEST(AuthenticatedPeer, RefusesAnotherSecret) {
  asio::io_context io;
  int peers = 0;
  AuthenticatedListener listener(io, "s3cret", [&](const json&, auto) { ++peers; });
  const Outcome outcome = connect(io, listener.port(), "guess");
  EXPECT_FALSE(outcome.ready);
  EXPECT_NE(outcome.failure.find("refused the run's secret"), std::string::npos) << outcome.failure;
  EXPECT_EQ(peers, 0);
}

TEST(AuthenticatedPeer, DoesNotBelieveAListenerWithoutTheSecret) {
  asio::io_context server_io;
  tcp::acceptor acceptor(server_io, {tcp::v4(), 0});
  // Sends the client's own answer back as its proof.
  std::thread liar([&] {
    tcp::socket socket = acceptor.accept();
    asio::write(socket, asio::buffer(std::string("{\"challenge\":\"00\"}\n")));
    std::string line;
    asio::read_until(socket, asio::dynamic_buffer(line), '\n');
    const std::string answer = json::parse(line)["answer"];
    asio::write(socket, asio::buffer(json{{"proof", answer}}.dump() + "\n"));
    asio::error_code ignored;
    asio::read_until(socket, asio::dynamic_buffer(line), '\n', ignored);
  });
  asio::io_context io;
  const Outcome outcome = connect(io, acceptor.local_endpoint().port(), "s3cret");
  liar.join();
  EXPECT_FALSE(outcome.ready);
  EXPECT_NE(outcome.failure.find("does not know"), std::string::npos) << outcome.failure;
}

TEST(AuthenticatedPeer, NobodyThereIsAFailureInTime) {
  asio::io_context io;
  uint16_t port = 0;
  {
    tcp::acceptor taken(io, {tcp::v4(), 0});
    port = taken.local_endpoint().port();
  }
  EXPECT_FALSE(connect(io, port, "s").failure.empty());
}

TEST(AuthenticatedPeer, ARefusalIsBelievedSooner) {
  asio::io_context io;
  uint16_t port = 0;
  {
    tcp::acceptor taken(io, {tcp::v4(), 0});
    port = taken.local_endpoint().port();
  }
  std::string failure;
  const auto begin = std::chrono::steady_clock::now();
  connect_authenticated(
      io, {"127.0.0.1", port}, "s", {}, std::chrono::minutes(10), [](auto) {},
      [&](const std::string& reason) { failure = reason; }, milliseconds(200));
  io.run_for(std::chrono::seconds(60));
  EXPECT_NE(failure.find("refused"), std::string::npos) << failure;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(AuthenticatedPeer, AnswersDifferByRoleAndNonce) {
  EXPECT_NE(keyed_answer("s", "client", "a", "b"), keyed_answer("s", "server", "a", "b"));
  EXPECT_NE(keyed_answer("s", "client", "a", "b"), keyed_answer("s", "client", "b", "a"));
  EXPECT_NE(keyed_answer("s", "client", "a", "b"), keyed_answer("t", "client", "a", "b"));
  EXPECT_NE(random_hex(16), random_hex(16));
  EXPECT_TRUE(same_answer("ab", "ab"));
  EXPECT_FALSE(same_answer("ab", "a"));
}

TEST(PeerAddress, TextAndBack) {
  for (const std::string text : {"10.0.0.1:80", "[fe80::1]:65535"})
    EXPECT_EQ(to_text(parse_peer_address(text)), text);
  for (const std::string bad : {"", "10.0.0.1", "10.0.0.1:", "10.0.0.1:x", ":80", "a:70000", "a:0"})
    EXPECT_THROW(parse_peer_address(bad), Error) << bad;
}

}  // namespace
}  // namespace af
