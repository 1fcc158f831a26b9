// SPDX-License-Identifier: Apache-2.0
// The address under which other nodes reach this one, and its interface (for GLOO_SOCKET_IFNAME and
// NCCL_SOCKET_IFNAME). Names are not asked: Debian maps a host's name to 127.0.1.1.
#pragma once

#include <string>
#include <vector>

namespace af {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric, without scope
  bool ipv6 = false;
  bool loopback = false;
  bool up = true;
};

struct NetworkAddress {
  std::string interface;
  std::string address;
};

// Pure. In this order: the interface the person named (GLOO_SOCKET_IFNAME…, exact name); the source
// address the kernel uses towards the others (`routed`, may be empty or loopback); any other that
// is up, real hardware before bridges of containers, IPv4 before IPv6, no link-local; loopback if
// nothing else exists. Throws Error if `wanted_interface` is named and has no address.
NetworkAddress choose_address(const std::vector<InterfaceAddress>& all, const std::string& routed,
                              const std::string& wanted_interface);

std::vector<InterfaceAddress> interface_addresses();
// Source address that the kernel would use towards a numeric address or host name; sends nothing.
// Empty if there is no route or the name is unknown.
std::string source_address_towards(const std::string& peer);

// The effect. `peers`: numeric addresses or host names of other nodes or of srun's host; more than
// one may be given, the first that is not this machine itself decides.
NetworkAddress routable_address(const std::vector<std::string>& peers,
                                const std::string& wanted_interface = "");

}  // namespace af
