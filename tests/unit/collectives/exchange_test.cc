// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/exchange.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

namespace af::local {
namespace {

// Rank 0's exchange with ranks 1 and 2, whose ends of the connections the test holds.
class ExchangeTest : public testing::Test {
 protected:
  std::vector<Link> connect() {
    std::vector<Link> made;
    for (const int rank : {1, 2}) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
      made.emplace_back();
      made.back().rank = rank;
      made.back().data.reset(ends[0]);
      peers[std::size_t(rank)].reset(ends[1]);
    }
    return made;
  }
  void comes_from(int rank, const std::string& bytes) {
    ASSERT_EQ(write(peers[std::size_t(rank)].get(), bytes.data(), bytes.size()),
              ssize_t(bytes.size()));
  }
  void run() { exchange.run(Clock::now() + std::chrono::seconds(10), std::chrono::seconds(10)); }

  const Topology topology{{{0}, {1}, {2}}, {0, 1, 2}, {0, 0, 0}};
  std::array<UniqueFd, 3> peers;
  const std::vector<Link> links = connect();
  Segment segment;
  Alarm alarm{0, 3};
  Waiting waiting{topology, 0, segment, alarm};
  Inquiry inquiry{0, links, waiting};
  Exchange exchange{links, alarm, waiting, inquiry};
};

// What has come on one connection queues more on another, which had nothing to do when it was
// looked at: as where a pipeline's segment is complete with the last of three nodes.
TEST_F(ExchangeTest, WhatIsQueuedOnAConnectionThatWasIdleIsAwaited) {
  comes_from(1, "one");
  comes_from(2, "two");
  std::string first(2, ' '), more(1, ' '), second(3, ' ');
  exchange.receive(1, first.data(), first.size());
  exchange.receive(2, second.data(), second.size(),
                   [&] { exchange.receive(1, more.data(), more.size()); });
  run();
  EXPECT_EQ(first + more, "one");
  EXPECT_EQ(second, "two");
}

TEST_F(ExchangeTest, AndWhatIsQueuedToBeSent) {
  comes_from(2, "two");
  std::string got(3, ' ');
  exchange.receive(2, got.data(), got.size(), [&] { exchange.send(1, "answer", 6); });
  run();
  char answer[7] = {};
  ASSERT_EQ(read(peers[1].get(), answer, sizeof(answer)), 6);
  EXPECT_STREQ(answer, "answer");
}

}  // namespace
}  // namespace af::local
