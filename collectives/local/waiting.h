// SPDX-License-Identifier: Apache-2.0
// How a rank waits for the others of its node: it spins for 2 us, yields, then sleeps on a futex,
// because more ranks than cores is normal here and a spinning rank keeps its peer from the core.
#pragma once

#include <chrono>
#include <vector>

#include "collectives/local/alarm.h"
#include "collectives/local/topology.h"

namespace af::local {

using Clock = std::chrono::steady_clock;

// Until when an operation may wait. A rank that waits for something indirect gives up a little
// later than the one that waits for the culprit itself, so that the first report names the right
// rank.
struct Deadline {
  Clock::time_point arrival;  // for a rank of the node to come
  Clock::time_point network;  // for data of another node
  Clock::time_point result;   // for a rank of the node that itself waits for another node
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds patience;  // for answers of ranks that are asked what they wait for
};
Deadline deadline_after(std::chrono::milliseconds timeout);

class Waiting {
 public:
  // `topology`, `segment` and `alarm` must outlive it.
  Waiting(const Topology& topology, int rank, const Segment& segment, Alarm& alarm);

  // All wait for counters of this node's ranks, by local index. They throw what the alarm says,
  // peer_lost if a rank that is waited for is gone, timeout at the deadline.
  void for_one(Counter RankSlot::*counter, int index, std::uint64_t target,
               Clock::time_point deadline);
  bool all_reached(Counter RankSlot::*counter, std::uint64_t target) const;  // does not wait
  void for_all(Counter RankSlot::*counter, std::uint64_t target, Clock::time_point deadline);

  // Notes whom this rank waits for outside shared memory (-1: nobody).
  void set_blocked_on(int rank);
  int blocked_on() const;  // -1: nobody. From any thread.
  // The rank that is at fault if `rank` does not come: follows who waits for whom.
  int culprit(int rank) const;
  void set_timeout_text(std::chrono::milliseconds timeout) { timeout_ = timeout; }

 private:
  [[noreturn]] void time_out(Counter RankSlot::*counter, std::uint64_t target, int index);

  const Topology& topology_;
  const std::vector<int>& mates_;  // ranks of this node
  const int rank_;
  const int index_;
  const Segment& segment_;
  Alarm& alarm_;
  std::chrono::milliseconds timeout_{0};
};

// "rank 2", "ranks 1, 3 and 4".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace af::local
