// SPDX-License-Identifier: Apache-2.0
#include "launcher/network_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "common/error.h"
#include "common/unique_fd.h"

namespace af {
namespace {

bool starts_with_any(const std::string& text, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) {
    return text.compare(0, std::strlen(prefix), prefix) == 0;
  });
}

// Bridges and tunnels of containers and virtual machines: up on many nodes, same address on all.
bool is_container_bridge(const std::string& interface) {
  return starts_with_any(interface, {"docker", "virbr", "br-", "cni", "podman", "lxc", "lxd",
                                     "flannel", "cali", "tunl"});
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

bool is_link_local(const InterfaceAddress& entry) {
  return entry.ipv6 ? entry.address.rfind("fe80", 0) == 0 : entry.address.rfind("169.254.", 0) == 0;
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  text[std::strcspn(text, "%")] = '\0';
  return text;
}

}  // namespace

NetworkAddress choose_address(const std::vector<InterfaceAddress>& all, const std::string& routed,
                              const std::string& wanted_interface) {
  // Lower is better. IPv6 link-local addresses need a scope that other nodes cannot know: last.
  const auto badness = [&](const InterfaceAddress& entry) {
    return std::make_tuple(entry.loopback || is_loopback(entry.address), is_link_local(entry),
                           entry.address != routed, is_container_bridge(entry.interface),
                           entry.ipv6);
  };
  const InterfaceAddress* best = nullptr;
  for (const InterfaceAddress& entry : all) {
    if (!entry.up) continue;
    if (!wanted_interface.empty() && entry.interface != wanted_interface) continue;
    if (best == nullptr || badness(entry) < badness(*best)) best = &entry;
  }
  if (best != nullptr) return {best->interface, best->address};
  if (!wanted_interface.empty())
    throw Error::format("network interface {} has no address on this node or is down",
                        wanted_interface);
  return {"lo", "127.0.0.1"};
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) throw errno_error("cannot list network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    result.push_back({entry->ifa_name, numeric(entry->ifa_addr, length), family == AF_INET6,
                      (entry->ifa_flags & IFF_LOOPBACK) != 0, (entry->ifa_flags & IFF_UP) != 0});
  }
  return result;
}

std::string source_address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(peer.c_str(), "9", &hints, &raw) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const UniqueFd socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // connect() of a datagram socket only looks up the route.
    if (!socket || ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0)
      return numeric(reinterpret_cast<sockaddr*>(&own), length);
  }
  return "";
}

NetworkAddress routable_address(const std::vector<std::string>& peers,
                                const std::string& wanted_interface) {
  const std::vector<InterfaceAddress> all = interface_addresses();
  std::string routed;
  for (const std::string& peer : peers) {
    routed = source_address_towards(peer);
    // A route to oneself goes over loopback (address 127.x) or names the peer's own address; both
    // say nothing about the way to other nodes, but the second is at least an address of ours.
    if (!routed.empty() && !is_loopback(routed)) break;
  }
  // Nobody to ask: the default route. This address is reserved for documentation (RFC 5737).
  if (routed.empty() || is_loopback(routed)) routed = source_address_towards("198.51.100.1");
  return choose_address(all, routed, wanted_interface);
}

}  // namespace af
