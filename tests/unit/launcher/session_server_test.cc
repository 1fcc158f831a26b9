// SPDX-License-Identifier: Apache-2.0
// The session protocol over a real abstract socket, with a client of plain system calls.
#include "launcher/session_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "common/error.h"
#include "common/unique_fd.h"
#include "launcher/challenge.h"
#include "launcher/key_store.h"

namespace af {
namespace {

using nlohmann::json;

UniqueFd connect_to(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) fd.reset();
  return fd;
}

std::string read_line(const UniqueFd& fd) {
  std::string line;
  char c = 0;
  while (::read(fd.get(), &c, 1) == 1 && c != '\n') line += c;
  return line;
}

TEST(SessionServer, LeavesAClientWhoseLineNeverEnds) {
  asio::io_context io;
  const std::string name = "af-test-" + random_hex(8);
  SessionServer server(io, name, nullptr);
  std::thread client([&] {
    const UniqueFd endless = connect_to(name);
    const std::string text(1 << 20, 'x');
    ssize_t sent = 1;
    for (int i = 0; i < 64 && sent > 0; ++i)
      sent = ::send(endless.get(), text.data(), text.size(), MSG_NOSIGNAL);
    EXPECT_LE(sent, 0) << "64 MiB were taken";
    io.stop();
  });
  io.run_for(std::chrono::seconds(60));
  client.join();
}

TEST(SessionServer, AnswersRequestsAndSurvivesBrokenClients) {
  asio::io_context io;
  const std::string name = "af-test-" + random_hex(8);
  std::vector<json> seen;
  SessionServer server(io, name, [&](const json& request, const SessionServer::Reply& reply) {
    seen.push_back(request);
    if (request["op"] == "get") reply({{"id", request["id"]}, {"ok", true}, {"value", "v"}});
  });
  std::thread client([&] {
    {
      const UniqueFd rude = connect_to(name);
      ASSERT_TRUE(rude);
      ASSERT_EQ(::write(rude.get(), "no json\n", 8), 8);
      EXPECT_EQ(json::parse(read_line(rude))["ok"], false);
      ASSERT_EQ(::write(rude.get(), "{\"op\":\"get\",", 12), 12);  // and goes away
    }
    const UniqueFd fd = connect_to(name);
    const std::string text = "{\"op\":\"report\",\"step\":1}\n{\"op\":\"get\",\"id\":9}\n";
    ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(json::parse(read_line(fd)), (json{{"id", 9}, {"ok", true}, {"value", "v"}}));
    io.stop();
  });
  io.run_for(std::chrono::seconds(20));
  client.join();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0]["step"], 1);
}

TEST(SessionServer, ATakenNameIsAnError) {
  asio::io_context io;
  const std::string name = "af-test-" + random_hex(8);
  SessionServer first(io, name, nullptr);
  EXPECT_THROW(SessionServer(io, name, nullptr), Error);
}

TEST(KeyStore, GivesAtOnceLaterOrNever) {
  asio::io_context io;
  KeyStore keys(io);
  std::vector<std::string> got;
  const auto note = [&](const std::optional<std::string>& value) {
    got.push_back(value.value_or("timeout"));
  };
  keys.set("a", "1");
  keys.get("a", std::chrono::milliseconds(0), note);
  keys.get("b", std::chrono::seconds(20), note);
  keys.get("b", std::chrono::seconds(20), note);
  EXPECT_EQ(got, std::vector<std::string>{"1"});
  keys.set("b", "2");
  EXPECT_EQ(got, (std::vector<std::string>{"1", "2", "2"}));
  keys.get("c", std::chrono::milliseconds(1), note);
  io.run_for(std::chrono::seconds(5));
  EXPECT_EQ(got.back(), "timeout");
  keys.set("c", "3");
  EXPECT_EQ(got.size(), 4u);
  keys.set("a", "4");
  keys.get("a", std::chrono::milliseconds(0), note);
  EXPECT_EQ(got.back(), "4");
}

}  // namespace
}  // namespace af
