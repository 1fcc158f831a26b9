// SPDX-License-Identifier: Apache-2.0
// Opens and proves the connections between ranks.
//
// Two connections per linked pair: `data` carries operations (TCP) or descriptors (Unix), `control`
// stays silent until a failure or the end. The higher rank connects. It sends a Hello with the
// first half of the world's token, the other answers with the second half: each side knows then
// that the other has read the store. Strangers are dropped without an answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collectives/cancel.h"
#include "collectives/local/socket.h"
#include "collectives/local/waiting.h"

namespace af::local {

struct Link {
  int rank = -1;
  UniqueFd data;
  UniqueFd control;
  UniqueFd process;  // pidfd of a rank on this node, where the system gives one
  bool same_node = false;
};

struct Hello {
  static constexpr std::uint32_t kMagic = 0x33434641;  // "AFC3"
  static constexpr std::size_t kTokenHalf = 32;
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0;
  std::uint32_t kind = 0;  // 0 data, 1 control
  std::uint32_t reserved = 0;
  char token[kTokenHalf] = {};
};
static_assert(sizeof(Hello) == 48);

struct PeerAddress {
  std::string unix_name;
  std::string host;
  int port = 0;
};

class Handshake {
 public:
  // `token`: 2 * Hello::kTokenHalf characters.
  Handshake(const Topology& topology, int rank, const std::string& token);
  ~Handshake();

  // Blocks until every link of this rank stands; throws timeout with the ranks that did not come,
  // and aborted when `cancel` (may be null) is raised.
  std::vector<Link> run(int unix_listener, int tcp_listener,
                        const std::vector<PeerAddress>& addresses, Clock::time_point deadline,
                        std::chrono::milliseconds timeout, const Cancel* cancel);

 private:
  struct Pending;
  void start(int peer, std::uint32_t kind, const PeerAddress& address);
  void accept_all(int listener, bool is_unix);
  // True if the connection is finished with: proven or dropped.
  bool advance(Pending& pending);
  bool advance_outgoing(Pending& pending);
  bool advance_incoming(Pending& pending);
  void keep(Pending& pending);
  std::vector<int> missing() const;

  const Topology& topology_;
  const int rank_;
  const std::string token_;
  std::map<int, Link> links_;
  std::vector<Pending> pending_;
};

}  // namespace af::local
