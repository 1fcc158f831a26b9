// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_gate.h"

#include <csignal>

namespace af {

bool SignalGate::admit(int signal, const std::string& route, double now) {
  const double window = signal == SIGTERM ? kTermWindowSeconds : kWindowSeconds;
  Burst& burst = bursts_[signal];
  if (burst.admitted > 0 && now - burst.last > window) burst = {};
  burst.last = now;
  const int arrivals = ++burst.arrivals[route];
  if (arrivals <= burst.admitted) return false;
  if (signal == SIGTERM && burst.admitted > 0) return false;
  ++burst.admitted;
  return true;
}

}  // namespace af
