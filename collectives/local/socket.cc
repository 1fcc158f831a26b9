// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "af/communicator.h"

namespace af::local {
namespace {

constexpr int kFlags = SOCK_CLOEXEC | SOCK_NONBLOCK;

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw CommunicatorError(CommunicatorError::Kind::system, what + ": " + std::strerror(error));
}

struct UnixAddress {
  sockaddr_un address = {};
  socklen_t length = 0;
};

UnixAddress abstract_address(const std::string& name) {
  UnixAddress result;
  result.address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(result.address.sun_path)) fail("socket name too long", ENAMETOOLONG);
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

const sockaddr* generic(const UnixAddress& unix_address) {
  return reinterpret_cast<const sockaddr*>(&unix_address.address);
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList resolve(const std::string& host, int port, int type) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            "cannot resolve " + host + ": " + gai_strerror(error));
  }
  return {found, freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

std::string address_of_route(const std::string& towards) {
  try {
    const AddressList found = resolve(towards, 9, SOCK_DGRAM);
    UniqueFd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    // Connecting a datagram socket sends nothing: it only asks for the route.
    if (!fd || connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) return "";
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return "";
    return numeric(reinterpret_cast<sockaddr*>(&own), length);
  } catch (const CommunicatorError&) {
    return "";
  }
}

std::string address_of_interface() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const ifaddrs* one = list; one != nullptr && found.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    found = numeric(one->ifa_addr, sizeof(sockaddr_in));
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

UniqueFd listen_unix(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | kFlags, 0));
  const UnixAddress address = abstract_address(name);
  if (!fd || bind(fd.get(), generic(address), address.length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    fail("cannot listen on the Unix socket @" + name);
  }
  return fd;
}

UniqueFd connect_unix(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | kFlags, 0));
  if (!fd) fail("cannot make a Unix socket");
  const UnixAddress address = abstract_address(name);
  if (connect(fd.get(), generic(address), address.length) != 0) return UniqueFd();
  return fd;
}

TcpListener listen_tcp(int port) {
  TcpListener listener;
  const int zero = 0;
  const int one = 1;
  listener.fd.reset(socket(AF_INET6, SOCK_STREAM | kFlags, 0));
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = htons(std::uint16_t(port));
  if (listener.fd) {
    setsockopt(listener.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (port != 0) setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  }
  if (!listener.fd ||
      bind(listener.fd.get(), reinterpret_cast<sockaddr*>(&any6), sizeof(any6)) != 0) {
    if (listener.fd && errno == EADDRINUSE) fail("cannot listen on port " + std::to_string(port));
    // A kernel without IPv6.
    listener.fd.reset(socket(AF_INET, SOCK_STREAM | kFlags, 0));
    sockaddr_in any4 = {};
    any4.sin_family = AF_INET;
    any4.sin_port = htons(std::uint16_t(port));
    if (listener.fd && port != 0) {
      setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    }
    if (!listener.fd ||
        bind(listener.fd.get(), reinterpret_cast<sockaddr*>(&any4), sizeof(any4)) != 0) {
      fail("cannot bind TCP port " + std::to_string(port));
    }
  }
  if (listen(listener.fd.get(), SOMAXCONN) != 0) fail("cannot listen on TCP");
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    fail("cannot read the bound port");
  }
  // The port is at the same place in both address families.
  listener.port = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return listener;
}

UniqueFd begin_connect_tcp(const std::string& host, int port) {
  const AddressList found = resolve(host, port, SOCK_STREAM);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | kFlags, 0));
  if (!fd) fail("cannot make a TCP socket");
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    fail("cannot connect to " + host + " port " + std::to_string(port));
  }
  return fd;
}

int connect_result(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

void tune_tcp(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  // A node that lost power sends nothing: three unanswered probes in 15 s mean that it is gone.
  const int idle = 6;
  const int interval = 3;
  const int probes = 3;
  const unsigned int unacknowledged_ms = 15000;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof(unacknowledged_ms));
}

UniqueFd accept_from(int listener) {
  return UniqueFd(accept4(listener, nullptr, nullptr, kFlags));
}

PeerCredentials credentials_of(int unix_fd) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    fail("cannot read who is at the other end of a Unix socket");
  }
  return {credentials.uid, credentials.pid};
}

void send_fd(int unix_fd, int fd) {
  char byte = 'F';
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  if (sendmsg(unix_fd, &message, MSG_NOSIGNAL) != 1) fail("cannot pass shared memory to a rank");
}

UniqueFd receive_fd(int unix_fd) {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(unix_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return UniqueFd();
  if (got <= 0) fail("a rank left while it passed shared memory", got == 0 ? ECONNRESET : errno);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    fail("a rank passed no shared memory where some was due", EPROTO);
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return UniqueFd(fd);
}

std::string own_address(const std::string& towards) {
  std::string address;
  if (!towards.empty()) address = address_of_route(towards);
  if (address.empty()) address = address_of_interface();
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace af::local
