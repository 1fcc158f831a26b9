// SPDX-License-Identifier: Apache-2.0
// Sleeping on a Counter of shared memory, between processes.
#pragma once

#include <chrono>

#include "collectives/local/segment.h"

namespace af::local {

// Sleeps while the low half of the counter is that of `seen`, at most so long. May return early.
void sleep_on(Counter& counter, std::uint64_t seen, std::chrono::nanoseconds at_most);
void wake_sleepers(Counter& counter);

// The owner's only way to raise a counter: wakes those who sleep on it.
inline void publish(Counter& counter, std::uint64_t value) {
  // Sequentially consistent, as is the sleeper's "count me, then look again": one of the two sees
  // the other, so no wake-up is lost.
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) wake_sleepers(counter);
}

inline bool reached(const Counter& counter, std::uint64_t target) {
  return counter.value.load(std::memory_order_acquire) >= target;
}

}  // namespace af::local
