// SPDX-License-Identifier: Apache-2.0
// A free TCP port for MASTER_PORT, and holding it until the world is over.
//
// The port lies outside ip_local_port_range, or any outgoing connection could take it between our
// look and the rank's listen. It is tested by binding all addresses without SO_REUSEADDR, and then
// held by that same socket with SO_REUSEADDR switched on and never listening: a server that sets
// SO_REUSEADDR (torch's TCPStore, gRPC) can listen on it, another af job's test fails and moves on.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace af {

struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;  // inclusive
};

class HeldPort {
 public:
  HeldPort() = default;
  HeldPort(uint16_t port, UniqueFd socket) : port_(port), socket_(std::move(socket)) {}
  uint16_t port() const { return port_; }
  void release() { socket_.reset(); }

 private:
  uint16_t port_ = 0;
  UniqueFd socket_;  // close-on-exec
};

// Pure. Ports to try, in an order that differs by seed so that jobs do not queue for the same one:
// outside `ephemeral` and `reserved`, from 10000 up; if nothing is left outside, inside as well.
std::vector<uint16_t> candidate_ports(PortRange ephemeral, const std::vector<PortRange>& reserved,
                                      uint64_t seed);

PortRange ephemeral_range();                   // of this network namespace
std::vector<PortRange> reserved_ranges();      // ip_local_reserved_ports
bool try_hold(uint16_t port, HeldPort& held);  // false: somebody has it

// The first candidate that can be held. Throws Error if none can.
HeldPort hold_free_port();

}  // namespace af
