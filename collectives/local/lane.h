// SPDX-License-Identifier: Apache-2.0
// Operations between nodes: this rank with the ranks of the same local index on all other nodes.
//
// Everything is exchanged directly, each with each: the volume is that of a ring and there are two
// steps instead of 2 (nodes - 1). Contributions are combined in the order of nodes, so the result
// does not depend on who was faster.
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

class Lane {
 public:
  // All arguments must outlive it.
  Lane(const Topology& topology, int rank, Exchange& exchange);

  void begin(const WireHeader& header, const Deadline& deadline);
  // What is queued and nothing more: headers of a barrier.
  void flush();

  // In place: `data` holds this node's part of the sum, and the whole sum at the end. `divisor` as
  // in Reduction.
  void all_reduce(char* data, std::size_t count, DataType type, ReduceOp op, int divisor);
  // blocks[node] of `base`: this node's is sent to all, the others' are received in place.
  void all_gather(char* base, const std::vector<Block>& blocks);
  // blocks[node] of `base` goes to that node; what comes for this one is combined with the own
  // block of `base` into `out` (which may be that block itself).
  void reduce_scatter(const char* base, const std::vector<Block>& blocks, char* out, DataType type,
                      ReduceOp op, int divisor);
  void broadcast(char* data, std::size_t bytes, int root_node);

 private:
  // Combines `own` with what the other nodes sent into scratch_, `bytes` each.
  void combine(const char* own, char* out, std::size_t bytes, DataType type, ReduceOp op,
               int divisor);
  char* scratch(int node, std::size_t bytes);
  void receive_all(std::size_t bytes);

  const int self_;          // number of this node
  std::vector<int> peers_;  // by node: the rank of this lane
  Exchange& exchange_;
  Deadline deadline_;
  std::vector<char> scratch_;
};

}  // namespace af::local
