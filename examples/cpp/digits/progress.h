// SPDX-License-Identifier: Apache-2.0
// When to print a line, and how long the rest will take.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace digits {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Progress(int64_t steps_of_training) : all_(steps_of_training) {}

  // After each step; true once a second.
  bool due(int64_t steps);
  // "1 min 20 s", at the pace of the last seconds: it follows the world's size. "?" before that.
  std::string left() const;

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  int64_t all_;
  int64_t steps_ = -1;
  double seconds_per_step_ = 0;
  Clock::time_point last_step_;
  Clock::time_point last_line_;
};

}  // namespace digits
