// SPDX-License-Identifier: Apache-2.0
// Case B04: two jobs on a node, and a port that somebody has already.
#include "launcher/port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>

namespace af {
namespace {

UniqueFd bound(uint16_t port, bool reuse, uint32_t address = INADDR_ANY) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse ? 1 : 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(address);
  name.sin_port = htons(port);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0)
    return UniqueFd();
  return socket;
}

TEST(CandidatePorts, LieOutsideOfWhatTheKernelGivesOut) {
  const std::vector<uint16_t> ports = candidate_ports({32768, 60999}, {{12000, 12999}}, 1);
  for (const uint16_t port : ports) {
    EXPECT_GE(port, 10000);
    EXPECT_FALSE(port >= 32768 && port <= 60999) << port;
    EXPECT_FALSE(port >= 12000 && port <= 12999) << port;
  }
  const size_t expected = (32767 - 10000 + 1) + (65535 - 61000 + 1) - 1000;
  EXPECT_EQ(ports.size(), expected);
  EXPECT_EQ(std::set<uint16_t>(ports.begin(), ports.end()).size(), expected);
}

TEST(CandidatePorts, InsideWhenNothingIsOutside) {
  const std::vector<uint16_t> ports = candidate_ports({1024, 65535}, {}, 1);
  EXPECT_EQ(ports.size(), 65535u - 10000u + 1);
}

TEST(CandidatePorts, JobsDoNotQueueForTheSameOne) {
  EXPECT_NE(candidate_ports({32768, 60999}, {}, 1).front(),
            candidate_ports({32768, 60999}, {}, 2).front());
}

TEST(HeldPort, IsSkippedWhenSomebodyHasIt) {
  HeldPort first = hold_free_port();
  const uint16_t port = first.port();
  HeldPort second;
  EXPECT_FALSE(try_hold(port, second));  // another af job's
  EXPECT_FALSE(bound(port, false));      // a careful server's
  first.release();
  // Anybody's: bound, not listening, of one address only, and with the option set.
  for (const bool reuse : {false, true}) {
    const UniqueFd taken = bound(port, reuse, INADDR_LOOPBACK);
    ASSERT_TRUE(taken);
    EXPECT_FALSE(try_hold(port, second)) << reuse;
  }
  EXPECT_TRUE(try_hold(port, second));
}

TEST(HeldPort, LetsTheRankListenAndStaysHeld) {
  const HeldPort held = hold_free_port();
  const PortRange range = ephemeral_range();
  EXPECT_FALSE(held.port() >= range.first && held.port() <= range.last);
  // As torch's TCPStore does it.
  const UniqueFd server = bound(held.port(), true);
  ASSERT_TRUE(server);
  ASSERT_EQ(::listen(server.get(), 8), 0);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(held.port());
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  HeldPort other;
  EXPECT_FALSE(try_hold(held.port(), other));
}

TEST(HeldPort, ManyAtOnceAreDifferent) {
  std::vector<HeldPort> held;
  std::set<uint16_t> ports;
  for (int i = 0; i < 20; ++i) {
    held.push_back(hold_free_port());
    ports.insert(held.back().port());
  }
  EXPECT_EQ(ports.size(), held.size());
}

}  // namespace
}  // namespace af
