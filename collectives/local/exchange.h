// SPDX-License-Identifier: Apache-2.0
// Sends to and receives from other nodes at the same time, over the data connections of one lane.
//
// Bytes are queued per link in the order in which they travel; run() moves all of them. Each
// operation begins with a header in both directions on every link, which proves that both sides
// are in the same operation before any byte of it is used.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "collectives/local/handshake.h"
#include "collectives/local/inquiry.h"

namespace af::local {

struct WireHeader {
  static constexpr std::uint32_t kMagic = 0x48434641;  // "AFCH"
  std::uint32_t magic = kMagic;
  std::uint32_t signature = 0;  // as in Call
  std::uint64_t index = 0;
  std::uint64_t count = 0;
  std::uint64_t generation = 0;
};
static_assert(sizeof(WireHeader) == 32);

class Exchange {
 public:
  // Uses the links of ranks on other nodes. All arguments must outlive it.
  Exchange(const std::vector<Link>& links, Alarm& alarm, Waiting& waiting, Inquiry& inquiry);

  // Queues the header of an operation on all links.
  void begin(const WireHeader& header);
  // `done` runs within run() when all bytes are there (those sent: when `data` may change), and may
  // queue more. Not called for 0 bytes.
  void send(int rank, const void* data, std::size_t bytes, std::function<void()> done = {});
  void receive(int rank, void* data, std::size_t bytes, std::function<void()> done = {});
  // Until everything queued has moved. Throws like Waiting, and mismatch.
  void run(Clock::time_point deadline, std::chrono::milliseconds timeout);

 private:
  struct Piece {
    char* data;
    std::size_t bytes;
    bool header = false;
    std::function<void()> done = {};
  };
  struct Line {
    int rank;
    int fd;
    std::deque<Piece> out;
    std::deque<Piece> in;
    WireHeader received;
    int wake_at = 1;  // bytes that must have come before poll() says so
  };

  Line& line_of(int rank);
  bool push(Line& line);  // true if bytes moved
  bool pull(Line& line);
  void check_header(const Line& line) const;
  [[noreturn]] void lost(const Line& line);
  void wake_at(Line& line, std::size_t bytes);
  void set_waiting_for(const std::vector<int>& ranks);
  void wait(Clock::time_point deadline, std::chrono::milliseconds timeout);

  Alarm& alarm_;
  Waiting& waiting_;
  Inquiry& inquiry_;
  std::vector<Line> lines_;
  WireHeader sent_;
  std::vector<int> waiting_for_;
};

}  // namespace af::local
