// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace af::local {
namespace {

constexpr std::size_t kMaxStrangers = 256;  // unproven connections at once

// In time that does not depend on where the first difference is.
bool equal_secret(const char* a, const char* b, std::size_t size) {
  unsigned char difference = 0;
  for (std::size_t i = 0; i < size; ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

struct Handshake::Pending {
  UniqueFd fd;
  bool outgoing = false;
  bool is_unix = false;
  int peer = -1;           // known at once if outgoing
  std::uint32_t kind = 0;  // likewise
  PeerAddress address;     // of outgoing ones, to try again
  bool greeted = false;    // outgoing: Hello sent
  Clock::time_point retry_at = {};
  std::size_t got = 0;
  Hello hello = {};  // being sent (outgoing) or received (incoming)
  char answer[Hello::kTokenHalf] = {};
};

Handshake::Handshake(const Topology& topology, int rank, const std::string& token)
    : topology_(topology), rank_(rank), token_(token) {
  if (token.size() != 2 * Hello::kTokenHalf) {
    throw CommunicatorError(CommunicatorError::Kind::store, "the world's token has a wrong length");
  }
}

Handshake::~Handshake() = default;

std::vector<Link> Handshake::run(int unix_listener, int tcp_listener,
                                 const std::vector<PeerAddress>& addresses,
                                 Clock::time_point deadline, std::chrono::milliseconds timeout,
                                 const Cancel* cancel) {
  for (int peer = 0; peer < rank_; ++peer) {
    if (!topology_.linked(rank_, peer)) continue;
    start(peer, 0, addresses[peer]);
    start(peer, 1, addresses[peer]);
  }
  while (true) {
    accept_all(unix_listener, true);
    accept_all(tcp_listener, false);
    std::erase_if(pending_, [this](Pending& pending) { return advance(pending); });
    if (missing().empty()) break;
    check_cancel(cancel);
    std::vector<pollfd> polled = {
        {unix_listener, POLLIN, 0}, {tcp_listener, POLLIN, 0}, {event_of(cancel), POLLIN, 0}};
    for (const Pending& pending : pending_) {
      const bool sending = pending.outgoing && !pending.greeted;
      polled.push_back({pending.fd.get(), short(sending ? POLLOUT : POLLIN), 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      const auto ranks = missing();
      throw CommunicatorError(CommunicatorError::Kind::timeout,
                              "no connection with " + list_ranks(ranks) + " within " +
                                  std::to_string(timeout.count()) + " ms",
                              ranks);
    }
    // At most 100 ms, for the connections that are to be tried again.
    poll(polled.data(), polled.size(), int(std::min<long>(left.count(), 100)));
  }
  std::vector<Link> links;
  for (auto& [peer, link] : links_) links.push_back(std::move(link));
  return links;
}

void Handshake::start(int peer, std::uint32_t kind, const PeerAddress& address) {
  Pending pending;
  pending.outgoing = true;
  pending.peer = peer;
  pending.kind = kind;
  pending.address = address;
  pending.is_unix = topology_.node_of[peer] == topology_.node_of[rank_];
  pending.hello.rank = rank_;
  pending.hello.kind = kind;
  std::memcpy(pending.hello.token, token_.data(), Hello::kTokenHalf);
  pending_.push_back(std::move(pending));
}

void Handshake::accept_all(int listener, bool is_unix) {
  while (pending_.size() < kMaxStrangers + 2 * std::size_t(topology_.world_size())) {
    UniqueFd fd = accept_from(listener);
    if (!fd) return;
    if (is_unix && credentials_of(fd.get()).uid != geteuid()) continue;  // another user: drop
    Pending pending;
    pending.fd = std::move(fd);
    pending.is_unix = is_unix;
    pending_.push_back(std::move(pending));
  }
}

bool Handshake::advance(Pending& pending) {
  return pending.outgoing ? advance_outgoing(pending) : advance_incoming(pending);
}

bool Handshake::advance_outgoing(Pending& pending) {
  if (!pending.fd) {
    if (Clock::now() < pending.retry_at) return false;
    pending.got = 0;
    pending.greeted = false;
    pending.retry_at = Clock::now() + std::chrono::milliseconds(100);
    pending.fd = pending.is_unix ? connect_unix(pending.address.unix_name)
                                 : begin_connect_tcp(pending.address.host, pending.address.port);
    if (!pending.fd) return false;
  }
  if (!pending.greeted) {
    const ssize_t sent =
        send(pending.fd.get(), &pending.hello, sizeof(Hello), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == ENOTCONN || errno == EINTR)) return false;
    if (sent != ssize_t(sizeof(Hello))) {
      pending.fd.reset();  // refused, or no route yet: try again until the deadline
      return false;
    }
    pending.greeted = true;
  }
  const ssize_t got = recv(pending.fd.get(), pending.answer + pending.got,
                           Hello::kTokenHalf - pending.got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    pending.fd.reset();
    return false;
  }
  pending.got += std::size_t(got);
  if (pending.got < Hello::kTokenHalf) return false;
  if (!equal_secret(pending.answer, token_.data() + Hello::kTokenHalf, Hello::kTokenHalf)) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            "what answers at the address of rank " + std::to_string(pending.peer) +
                                " (" + pending.address.host + ") is not that rank",
                            {pending.peer});
  }
  keep(pending);
  return true;
}

bool Handshake::advance_incoming(Pending& pending) {
  const ssize_t got = recv(pending.fd.get(), reinterpret_cast<char*>(&pending.hello) + pending.got,
                           sizeof(Hello) - pending.got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) return true;
  pending.got += std::size_t(got);
  if (pending.got < sizeof(Hello)) return false;
  const Hello& hello = pending.hello;
  const bool known = hello.magic == Hello::kMagic && hello.kind <= 1 && hello.rank > rank_ &&
                     hello.rank < topology_.world_size() && topology_.linked(rank_, hello.rank) &&
                     equal_secret(hello.token, token_.data(), Hello::kTokenHalf);
  if (!known) return true;
  pending.peer = hello.rank;
  pending.kind = hello.kind;
  if (send(pending.fd.get(), token_.data() + Hello::kTokenHalf, Hello::kTokenHalf,
           MSG_DONTWAIT | MSG_NOSIGNAL) != ssize_t(Hello::kTokenHalf)) {
    return true;
  }
  keep(pending);
  return true;
}

void Handshake::keep(Pending& pending) {
  Link& link = links_[pending.peer];
  link.rank = pending.peer;
  link.same_node = pending.is_unix;
  if (!pending.is_unix) tune_tcp(pending.fd.get());
  if (pending.kind == 0) {
    link.data = std::move(pending.fd);
    return;
  }
  link.control = std::move(pending.fd);
  if (!pending.is_unix) return;
  // The end of a process closes its connections only if no child of it (a DataLoader worker) holds
  // them open: so watch the process itself too.
  const pid_t pid = credentials_of(link.control.get()).pid;
  if (pid > 0 && pid != getpid()) link.process.reset(int(syscall(SYS_pidfd_open, pid, 0)));
}

std::vector<int> Handshake::missing() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < topology_.world_size(); ++peer) {
    if (!topology_.linked(rank_, peer)) continue;
    const auto found = links_.find(peer);
    if (found == links_.end() || !found->second.data || !found->second.control) {
      ranks.push_back(peer);
    }
  }
  return ranks;
}

}  // namespace af::local
