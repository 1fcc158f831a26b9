// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_gate.h"

#include <gtest/gtest.h>

#include <csignal>

namespace af {
namespace {

TEST(SignalGate, RoutesOfOneEventCountOnce) {
  SignalGate gate;
  EXPECT_TRUE(gate.admit(SIGUSR1, "keeper", 10.0));
  EXPECT_FALSE(gate.admit(SIGUSR1, "direct", 10.01));
  EXPECT_FALSE(gate.admit(SIGUSR1, "coordinator", 10.5));
}

TEST(SignalGate, OneRouteTwiceIsTwoEvents) {
  SignalGate gate;
  EXPECT_TRUE(gate.admit(SIGUSR1, "keeper", 10.0));
  EXPECT_FALSE(gate.admit(SIGUSR1, "direct", 10.01));
  EXPECT_TRUE(gate.admit(SIGUSR1, "direct", 10.2));
  EXPECT_FALSE(gate.admit(SIGUSR1, "keeper", 10.21));
  EXPECT_TRUE(gate.admit(SIGUSR1, "keeper", 10.3));
}

TEST(SignalGate, LaterIsAnotherEvent) {
  SignalGate gate;
  EXPECT_TRUE(gate.admit(SIGUSR2, "keeper", 10.0));
  EXPECT_TRUE(gate.admit(SIGUSR2, "coordinator", 10.0 + SignalGate::kWindowSeconds + 0.1));
}

TEST(SignalGate, SignalsDoNotHideEachOther) {
  SignalGate gate;
  EXPECT_TRUE(gate.admit(SIGUSR1, "keeper", 10.0));
  EXPECT_TRUE(gate.admit(SIGUSR2, "direct", 10.0));
  EXPECT_TRUE(gate.admit(SIGTERM, "direct", 10.0));
}

TEST(SignalGate, ScancelRepeatsTerm) {
  SignalGate gate;
  EXPECT_TRUE(gate.admit(SIGTERM, "keeper", 10.0));
  EXPECT_FALSE(gate.admit(SIGTERM, "keeper", 11.0));
  EXPECT_FALSE(gate.admit(SIGTERM, "keeper", 13.0));
  // A TERM that was a first notice, and the one of the time limit much later.
  EXPECT_TRUE(gate.admit(SIGTERM, "keeper", 60.0));
}

}  // namespace
}  // namespace af
