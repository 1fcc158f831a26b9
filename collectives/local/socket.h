// SPDX-License-Identifier: Apache-2.0
// The system calls on sockets that the local backend makes. All descriptors are close-on-exec and
// non-blocking; all failures are CommunicatorErrors (system) that name the address.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/unique_fd.h"

namespace af::local {

// Abstract Unix sockets: names live in the network namespace, not in a file system that a job may
// have of its own, and vanish with their owner. `name` without the leading NUL.
UniqueFd listen_unix(const std::string& name);
// Empty if nobody listens there.
UniqueFd connect_unix(const std::string& name);

struct TcpListener {
  UniqueFd fd;
  int port = 0;
};
// On all addresses, IPv6 and IPv4, at a port that the system chooses (or `port`).
TcpListener listen_tcp(int port = 0);
// Begins to connect; writable once connected or failed, see connect_result().
UniqueFd begin_connect_tcp(const std::string& host, int port);
int connect_result(int fd);  // errno of the connection attempt, 0 if connected
// No delay, and the kernel gives up on a silent peer in good time.
void tune_tcp(int fd);

UniqueFd accept_from(int listener);  // empty if nobody waits
// User and process at the other end of a Unix socket.
struct PeerCredentials {
  uid_t uid;
  pid_t pid;
};
PeerCredentials credentials_of(int unix_fd);

// Passes an open descriptor along one byte. send_fd throws; receive_fd gives an empty one if none
// has come yet, and throws if the connection ended.
void send_fd(int unix_fd, int fd);
UniqueFd receive_fd(int unix_fd);

// The numeric address with which this host is reached: of the route to `towards` if that resolves,
// else the first that is up and not loopback, else 127.0.0.1.
std::string own_address(const std::string& towards);

}  // namespace af::local
