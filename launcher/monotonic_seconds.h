// SPDX-License-Identifier: Apache-2.0
// The time that a SignalGate is given: seconds that only grow, whatever is done to the wall clock.
#pragma once

#include <chrono>

namespace af {

inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace af
