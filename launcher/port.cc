// SPDX-License-Identifier: Apache-2.0
#include "launcher/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>

#include "common/error.h"

namespace af {
namespace {

// Below this live well-known and registered services that start after us and would not expect us.
constexpr int kLowest = 10000;
constexpr int kHighest = 65535;

bool contains(const PortRange& range, int port) {
  return range.first <= port && port <= range.last;
}

UniqueFd bind_all_addresses(uint16_t port) {
  // One IPv6 socket covers IPv4 as well; where IPv6 is switched off, IPv4 alone is all there is.
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket) {
    const int off = 0;
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(port);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
      return socket;
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) return UniqueFd();
  }
  socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (socket && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
    return socket;
  return UniqueFd();
}

}  // namespace

std::vector<uint16_t> candidate_ports(PortRange ephemeral, const std::vector<PortRange>& reserved,
                                      uint64_t seed) {
  std::vector<uint16_t> outside, inside;
  for (int port = kLowest; port <= kHighest; ++port) {
    if (std::any_of(reserved.begin(), reserved.end(),
                    [&](const PortRange& range) { return contains(range, port); }))
      continue;
    (contains(ephemeral, port) ? inside : outside).push_back(static_cast<uint16_t>(port));
  }
  std::vector<uint16_t>& ports = outside.empty() ? inside : outside;
  std::mt19937_64 random(seed);
  std::shuffle(ports.begin(), ports.end(), random);
  return ports;
}

PortRange ephemeral_range() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  unsigned first = 0, last = 0;
  if (!(file >> first >> last) || first > last || last > kHighest) return {32768, 60999};
  return {static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

std::vector<PortRange> reserved_ranges() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_reserved_ports");  // "8080,9000-9010"
  std::vector<PortRange> ranges;
  std::string token;
  while (std::getline(file, token, ',')) {
    std::istringstream text(token);
    unsigned first = 0, last = 0;
    char dash = 0;
    if (!(text >> first)) continue;
    if (!(text >> dash >> last)) last = first;
    ranges.push_back({static_cast<uint16_t>(first), static_cast<uint16_t>(last)});
  }
  return ranges;
}

bool try_hold(uint16_t port, HeldPort& held) {
  UniqueFd socket = bind_all_addresses(port);
  if (!socket) return false;
  // Only now: bind() looked at the others as a socket that shares with nobody, and from here on the
  // port may be shared with a server that sets the option too. There is no moment without a holder.
  const int on = 1;
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) return false;
  held = HeldPort(port, std::move(socket));
  return true;
}

HeldPort hold_free_port() {
  const PortRange range = ephemeral_range();
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const uint64_t seed = static_cast<uint64_t>(now) ^ (static_cast<uint64_t>(::getpid()) << 32);
  HeldPort held;
  for (const uint16_t port : candidate_ports(range, reserved_ranges(), seed))
    if (try_hold(port, held)) return held;
  throw Error::format("no free TCP port on this node (looked outside {}-{}, from {} up)",
                      range.first, range.last, kLowest);
}

}  // namespace af
