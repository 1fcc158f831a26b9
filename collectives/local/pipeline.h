// SPDX-License-Identifier: Apache-2.0
// A reduction between nodes by segments: while one is on its way, the one before is being combined,
// and the one before that goes out as a result.
//
// Every node owns a block. Each sends its contributions to a block to its owner, who combines them
// in the order of nodes and, in an all-reduce, sends the result to all. A segment is small enough
// to stay in the cache from the socket to the sum and back. What goes over a connection and in
// which order follows from the sizes of the two blocks alone, so both ends know it.
#pragma once

#include <vector>

#include "collectives/local/exchange.h"
#include "collectives/reduce.h"

namespace af::local {

// A part of a buffer, in bytes from its start.
struct Block {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

struct Message {
  bool is_result = false;  // else a contribution
  std::size_t segment = 0;
  bool operator==(const Message&) const = default;
};

// The messages of one direction: contributions to the receiver's block, and results of the sender's
// (0 where there are none, in a reduce-scatter). A result follows `lead` contributions after those
// that it is made of: so much is on its way while the owner waits for them and combines them.
std::vector<Message> wire_order(std::size_t contributions, std::size_t results, std::size_t lead);
// Segments, by the number of nodes that share a rank's link: 2 MiB in all, which is more than a
// link of 100 Gbit/s holds in 100 us.
std::size_t lead_of(int nodes);

class Pipeline {
 public:
  static constexpr std::size_t kSegmentBytes = 256 * 1024;

  struct Job {
    const char* in;  // this node's contributions: blocks[node] of it goes to that node
    char* own;       // where the sum of this node's block goes; may be that block of `in`
    char* results;   // where the others' sums go, at their blocks; null: a reduce-scatter
    std::vector<Block> blocks;
    DataType type;
    ReduceOp op;
    int divisor;  // as in Reduction
  };

  // `peers`: by node, the rank of this lane. All arguments must outlive it.
  Pipeline(const std::vector<int>& peers, int self, Exchange& exchange);

  // Queues what can move now; the rest follows while the exchange runs.
  void start(const Job& job);

 private:
  struct Direction {
    std::vector<Message> order;
    std::size_t next = 0;
  };
  struct Peer {
    int node;
    Direction out, in;
  };

  void advance();
  void send_to(Peer& peer);
  void receive_from(Peer& peer);
  void combine(std::size_t segment);
  // Of a node's block, in bytes from the block's start.
  Block part(int node, std::size_t segment) const;
  std::size_t segments(int node) const;
  char* scratch(int node, std::size_t segment);

  const std::vector<int>& peers_;
  const int self_;
  Exchange& exchange_;
  Job job_{};
  std::vector<Peer> lines_;
  std::size_t reduced_ = 0;  // segments of the own block that are done
  // Segments whose contributions may be here at once. A peer that is ahead by more is not read
  // until the others have caught up.
  std::size_t window_ = 0;
  std::vector<std::size_t> arrived_;  // contributions that are here, by segment modulo the window
  std::vector<char> scratch_;
  std::vector<const void*> inputs_;
};

}  // namespace af::local
