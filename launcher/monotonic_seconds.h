// SPDX-License-Identifier: Apache-2.0
// Seconds that only grow, whatever is done to the wall clock.
#pragma once

#include <chrono>

#include "launcher/clock.h"

namespace af {

inline double monotonic_seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace af
