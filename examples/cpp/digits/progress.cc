// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/digits/progress.h"

#include <algorithm>
#include <cmath>

namespace digits {

bool Progress::due(int64_t steps) {
  const auto now = Clock::now();
  if (steps_ < 0) {
    last_line_ = now;
  } else {
    double took = std::chrono::duration<double>(now - last_step_).count();
    // The last second counts for two thirds, however many steps it had; a step in which the world
    // changed is no measure.
    if (seconds_per_step_ > 0) took = std::min(took, 3 * seconds_per_step_);
    const double weight = seconds_per_step_ > 0 ? 1 - std::exp(-took) : 1;
    seconds_per_step_ += weight * (took - seconds_per_step_);
  }
  steps_ = steps;
  last_step_ = now;
  if (now - last_line_ < std::chrono::seconds(1)) return false;
  last_line_ = now;
  return true;
}

std::string Progress::left() const {
  if (seconds_per_step_ <= 0) return "?";
  const double steps = static_cast<double>(std::max<int64_t>(0, all_ - steps_));
  const auto seconds = static_cast<int64_t>(std::ceil(steps * seconds_per_step_));
  if (seconds < 60) return std::to_string(seconds) + " s";
  return std::to_string(seconds / 60) + " min " + std::to_string(seconds % 60) + " s";
}

}  // namespace digits
