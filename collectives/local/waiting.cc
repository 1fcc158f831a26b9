// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/waiting.h"

#include <sched.h>

#include <algorithm>
#include <string>

#include "collectives/executor.h"
#include "collectives/local/futex.h"

namespace af::local {
namespace {

constexpr std::chrono::nanoseconds kSpin = std::chrono::microseconds(2);
// A core that nobody else wants is given away at no cost, while a sleeper costs the rank that comes
// later a wake-up (15 us on a virtual machine) and is late itself. Ranks that compute the same are
// apart by less than this. Where others do want the core, the first yield takes longer.
constexpr std::chrono::nanoseconds kYield = std::chrono::microseconds(100);
// A failure that is raised between the last look and the sleep would be missed by the wake-up: so
// no sleep is longer than this.
constexpr std::chrono::nanoseconds kSleep = std::chrono::milliseconds(10);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Deadline deadline_after(std::chrono::milliseconds timeout) {
  const auto now = Clock::now();
  const auto step = std::min(timeout / 10, std::chrono::milliseconds(500));
  return {now + timeout - 2 * step, now + timeout - step, now + timeout, timeout, step / 2};
}

Waiting::Waiting(const Topology& topology, int rank, const Segment& segment, Alarm& alarm)
    : topology_(topology),
      mates_(topology.nodes[topology.node_of[rank]]),
      rank_(rank),
      index_(topology.index_of[rank]),
      segment_(segment),
      alarm_(alarm) {}

void Waiting::for_one(Counter RankSlot::*which, int index, std::uint64_t target,
                      Clock::time_point deadline) {
  Counter& counter = segment_.slot(index).*which;
  if (reached(counter, target)) return;
  const auto spin_end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (reached(counter, target)) return;
      relax();
    }
  } while (Clock::now() < spin_end);
  while (!is_progress_thread() && Clock::now() < spin_end + kYield) {
    sched_yield();
    if (reached(counter, target)) return;
  }
  set_blocked_on(mates_[index]);
  while (true) {
    const std::uint64_t seen = counter.value.load(std::memory_order_acquire);
    if (seen >= target) break;
    alarm_.check();
    if (alarm_.is_dead(mates_[index])) {
      // It may have done its part and left since: what it wrote before its end counts.
      if (reached(counter, target)) break;
      throw CommunicatorError(CommunicatorError::Kind::peer_lost,
                              list_ranks({mates_[index]}) + " died or left", {mates_[index]});
    }
    const auto now = Clock::now();
    if (now >= deadline) time_out(which, target, index);
    sleep_on(counter, seen, std::min<std::chrono::nanoseconds>(kSleep, deadline - now));
  }
  set_blocked_on(-1);
}

bool Waiting::all_reached(Counter RankSlot::*counter, std::uint64_t target) const {
  for (int i = 0; i < int(mates_.size()); ++i) {
    if (i != index_ && !reached(segment_.slot(i).*counter, target)) return false;
  }
  return true;
}

void Waiting::for_all(Counter RankSlot::*counter, std::uint64_t target,
                      Clock::time_point deadline) {
  // From the next rank on, so that not all ranks sleep on the same line.
  const int count = int(mates_.size());
  for (int i = 1; i < count; ++i) for_one(counter, (index_ + i) % count, target, deadline);
}

void Waiting::set_blocked_on(int rank) {
  if (segment_) segment_.slot(index_).blocked_on.store(rank + 1, std::memory_order_relaxed);
}

int Waiting::blocked_on() const {
  if (!segment_) return -1;
  return segment_.slot(index_).blocked_on.load(std::memory_order_relaxed) - 1;
}

int Waiting::culprit(int rank) const {
  int current = rank;
  for (std::size_t steps = 0; steps <= mates_.size(); ++steps) {
    if (!segment_ || topology_.node_of[current] != topology_.node_of[rank_]) return current;
    const int next =
        segment_.slot(topology_.index_of[current]).blocked_on.load(std::memory_order_relaxed) - 1;
    if (next < 0 || next >= topology_.world_size()) return current;
    current = next;
  }
  // A circle: a rank that was stopped in its sleep still says what it waited for then.
  return rank;
}

void Waiting::time_out(Counter RankSlot::*counter, std::uint64_t target, int index) {
  std::vector<int> missing;
  for (int i = 0; i < int(mates_.size()); ++i) {
    if (i == index_ || (i != index && reached(segment_.slot(i).*counter, target))) continue;
    // Of a counter that only one rank raises the others say nothing.
    if (counter == &RankSlot::net && i != index) continue;
    const int rank = culprit(mates_[i]);
    if (rank != rank_ && std::find(missing.begin(), missing.end(), rank) == missing.end()) {
      missing.push_back(rank);
    }
  }
  if (missing.empty()) missing.push_back(mates_[index]);
  std::sort(missing.begin(), missing.end());
  throw CommunicatorError(CommunicatorError::Kind::timeout,
                          list_ranks(missing) + " did not take part within " +
                              std::to_string(double(timeout_.count()) / 1000).substr(0, 5) + " s",
                          missing);
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace af::local
