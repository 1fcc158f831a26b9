// SPDX-License-Identifier: Apache-2.0
// One signal can arrive over several routes: slurmstepd signals the task and, with
// proctrack/linuxproc, every process below it; a batch script's supervisor passes on what
// slurmstepd has sent as well; `scancel --full` reaches the front and the steps. The gate lets the
// same event through once. Pure: the clock is the caller's.
#pragma once

#include <map>
#include <string>

namespace af {

class SignalGate {
 public:
  // Arrivals over different routes within this time are one event. Two arrivals over one route are
  // two events (somebody sent it twice), except TERM, which scancel repeats: one per window.
  static constexpr double kWindowSeconds = 2.0;
  static constexpr double kTermWindowSeconds = 5.0;

  // True: act on it. `route` names the sender; `now` is in seconds on any clock.
  bool admit(int signal, const std::string& route, double now);

 private:
  struct Burst {
    double last = 0;
    int admitted = 0;
    std::map<std::string, int> arrivals;
  };
  std::map<int, Burst> bursts_;
};

}  // namespace af
