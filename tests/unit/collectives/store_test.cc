// SPDX-License-Identifier: Apache-2.0
// The three stores, and what hostile or broken peers of the TCP one may do.
#include "af/store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "af/communicator.h"
#include "collectives/local/identity.h"
#include "collectives/local/socket.h"
#include "collectives/store/store_server.h"

namespace af {
namespace {

using namespace std::chrono_literals;
using Kind = CommunicatorError::Kind;

int free_port() {
  return local::listen_tcp().port;
}

void check_store(Store& a, Store& b) {
  a.set("plain", "value");
  EXPECT_EQ(b.get("plain", 5s), "value");
  a.set("plain", "newer \"quoted\"\nline \xc3\xa4");
  EXPECT_EQ(b.get("plain", 5s), "newer \"quoted\"\nline \xc3\xa4");
  std::thread later([&] {
    std::this_thread::yield();
    a.set("late", std::string(100'000, 'x'));
  });
  EXPECT_EQ(b.get("late", 30s).size(), 100'000u);
  later.join();
  try {
    b.get("never", 20ms);
    ADD_FAILURE() << "a key that nobody set";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), Kind::timeout);
    EXPECT_NE(std::string(error.what()).find("never"), std::string::npos);
  }
  EXPECT_EQ(b.get("plain", 1ms).substr(0, 5), "newer");  // still in step after a timeout
}

TEST(Stores, InProcess) {
  const auto store = make_in_process_store();
  check_store(*store, *store);
}

TEST(Stores, Tcp) {
  const int port = free_port();
  // The client may come first.
  std::thread client([&] {
    const auto one = make_tcp_store("127.0.0.1", port, 1, 20s);
    EXPECT_EQ(one->get("hello", 20s), "0");
    one->set("answer", "1");
  });
  const auto zero = make_tcp_store("127.0.0.1", port, 0, 20s);
  zero->set("hello", "0");
  EXPECT_EQ(zero->get("answer", 20s), "1");
  const auto other = make_tcp_store("127.0.0.1", port, 2, 20s);
  check_store(*zero, *other);
  client.join();
}

TEST(Stores, TcpWithoutRankZeroSaysWhere) {
  const int port = free_port();
  const auto store = make_tcp_store("127.0.0.1", port, 1, 100ms);
  try {
    store->get("x", 1s);
    ADD_FAILURE() << "no server";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{0});
    EXPECT_NE(std::string(error.what()).find(std::to_string(port)), std::string::npos);
  }
}

TEST(Stores, TcpServerSurvivesStrangers) {
  StoreServer server(0);
  for (const std::string& noise :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string("{}\n"),
        std::string("{\"id\":1,\"op\":\"set\"}\n[1]\n\n"), std::string("\0\xff\xfe\n", 4)}) {
    UniqueFd fd = local::begin_connect_tcp("127.0.0.1", server.port());
    pollfd polled = {fd.get(), POLLOUT, 0};
    ASSERT_EQ(poll(&polled, 1, 5000), 1);
    ASSERT_EQ(send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL), ssize_t(noise.size()));
  }
  const auto store = make_tcp_store("127.0.0.1", server.port(), 1, 5s);
  check_store(*store, *store);
}

// One client of the agent's protocol, enough of it.
void serve_session(int listener, int requests) {
  std::map<std::string, std::string> values;
  UniqueFd fd;
  while (!fd) {
    pollfd polled = {listener, POLLIN, 0};
    poll(&polled, 1, 10'000);
    fd = local::accept_from(listener);
  }
  std::string text;
  while (requests > 0) {
    pollfd polled = {fd.get(), POLLIN, 0};
    if (poll(&polled, 1, 10'000) != 1) return;
    char bytes[4096];
    const ssize_t n = recv(fd.get(), bytes, sizeof(bytes), 0);
    if (n <= 0) return;
    text.append(bytes, std::size_t(n));
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      const auto request = nlohmann::json::parse(text.substr(0, end));
      nlohmann::json reply = {{"id", request["id"]}, {"ok", true}};
      const std::string key = request["key"];
      if (request["op"] == "set") {
        values[key] = request["value"];
      } else if (values.count(key) != 0) {
        reply["value"] = values[key];
      } else {
        reply["ok"] = false;
        reply["error"] = "timeout";
      }
      // What the agent says unasked is not for the store.
      const std::string line = "{\"op\":\"leave\"}\n" + reply.dump() + "\n";
      (void)!send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL);
      --requests;
    }
  }
}

TEST(Stores, Session) {
  const std::string name = "af-test-" + local::random_hex(16);
  const UniqueFd listener = local::listen_unix(name);
  std::thread agent([&] { serve_session(listener.get(), 3); });
  const auto store = make_session_store("@" + name);
  store->set("a", "1");
  EXPECT_EQ(store->get("a", 5s), "1");
  EXPECT_THROW(store->get("b", 5s), CommunicatorError);
  agent.join();
  try {
    store->get("a", 1s);
    ADD_FAILURE() << "the agent has gone";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), Kind::store) << error.what();
  }
}

TEST(Stores, SessionWithoutAgentSaysWhere) {
  const auto store = make_session_store("@af-nobody-" + local::random_hex(16));
  try {
    store->set("a", "1");
    ADD_FAILURE() << "no agent";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), Kind::store);
    EXPECT_NE(std::string(error.what()).find("@af-nobody-"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace af
