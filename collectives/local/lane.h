// SPDX-License-Identifier: Apache-2.0
// Operations between nodes: this rank with the ranks of the same local index on all other nodes.
//
// Everything is exchanged directly, each with each: the volume is that of a ring and there are two
// steps instead of 2 (nodes - 1), or one for what is small. Contributions are combined in the order
// of nodes, so the result does not depend on who was faster; a ring would combine each block in
// another order, and round f16 and bf16 at every hop.
#pragma once

#include <vector>

#include "collectives/local/pipeline.h"

namespace af::local {

// How an all-reduce goes between nodes.
enum class Way {
  one_step,  // everything to all, each combines all: (nodes - 1) times the volume, half the latency
  two_steps,  // each combines a block and sends it to all (pipeline.h)
};
Way choose_way(int nodes, std::size_t bytes);

class Lane {
 public:
  // All arguments must outlive it.
  Lane(const Topology& topology, int rank, Exchange& exchange);

  void begin(const WireHeader& header, const Deadline& deadline);
  // What is queued and nothing more: headers of a barrier.
  void flush();

  // `in` holds this node's part of the sum, `out` the whole sum at the end; they may be the same.
  // `divisor` as in Reduction.
  void all_reduce(const char* in, char* out, std::size_t count, DataType type, ReduceOp op,
                  int divisor);
  // blocks[node] of `base`: this node's is sent to all, the others' are received in place.
  void all_gather(char* base, const std::vector<Block>& blocks);
  // blocks[node] of `base` goes to that node; what comes for this one is combined with the own
  // block of `base` into `out` (which may be that block itself).
  void reduce_scatter(const char* base, const std::vector<Block>& blocks, char* out, DataType type,
                      ReduceOp op, int divisor);
  void broadcast(char* data, std::size_t bytes, int root_node);

 private:
  // All of job.in to all, part by part, while the sum of what has come is made in job.own.
  void one_step(const Pipeline::Job& job, std::size_t bytes);
  void combine(const Pipeline::Job& job, std::size_t bytes, const Block& part);
  char* scratch(int node, std::size_t bytes);

  const int self_;          // number of this node
  std::vector<int> peers_;  // by node: the rank of this lane
  Exchange& exchange_;
  Pipeline pipeline_;
  Deadline deadline_;
  std::vector<char> scratch_;
  std::vector<int> missing_;  // by part: transfers until it can be combined
  std::vector<const void*> inputs_;
};

}  // namespace af::local
