// SPDX-License-Identifier: Apache-2.0
// The clock of the coordinator and of all that counts seconds: the system's monotonic one. A test
// may set it by hand, so that minutes pass in milliseconds and no load can change what happens.
#pragma once

#include <asio/basic_waitable_timer.hpp>
#include <atomic>
#include <chrono>

namespace af {

struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    const rep set = by_hand.load(std::memory_order_relaxed);
    if (set != 0) return time_point(duration(set));
    return time_point(
        std::chrono::duration_cast<duration>(std::chrono::steady_clock::now().time_since_epoch()));
  }

  // For tests alone: nanoseconds; 0: the system's clock.
  static inline std::atomic<rep> by_hand{0};
};

using Timer = asio::basic_waitable_timer<Clock>;

}  // namespace af
