// SPDX-License-Identifier: Apache-2.0
// Operations in a world of several nodes of which some have several ranks.
//
// By chunks: the ranks of a node bring their inputs together in the segment's common result, the
// node's first `lanes` ranks exchange a share of it each with the other nodes, and all copy out.
// Messages up to 64 KiB use one lane, whose rank reduces for its whole node.
#pragma once

#include "collectives/local/arrival.h"
#include "collectives/local/lane.h"

namespace af::local {

class WideOperations {
 public:
  WideOperations(const Topology& topology, int rank, const Segment& segment, Waiting& waiting,
                 const SharedBuffers& buffers, Exchange& exchange, std::uint64_t generation);
  void run(const Operation& operation, const Deadline& deadline);

 private:
  void barrier(const Operation& operation);
  void all_reduce(const Operation& operation);
  void broadcast(const Operation& operation);
  void all_gather(const Operation& operation);
  void reduce_scatter(const Operation& operation);

  // Says that this rank's input of the chunk is there; with chunk 0, that it has come.
  void come(const Operation& operation, std::size_t chunk, const Place& in);
  void await_in(const Operation& operation, std::size_t chunk);
  void await_lanes(std::size_t chunk);
  std::uint64_t tick(std::size_t chunk) const { return base_ + chunk + 1; }
  bool is_lane() const { return self_ < lanes_; }
  int divisor(const Operation& operation) const;
  // Node `node`'s ranks in a buffer with `bytes` per rank, node by node; this lane's share of it.
  Block lane_block(int node, std::size_t bytes, std::size_t element_bytes) const;

  const Topology& topology_;
  const int rank_;
  const int node_;
  const int self_;                   // local index
  const int ranks_;                  // of this node
  const std::vector<int> position_;  // by rank, node by node
  const Segment& segment_;
  Waiting& waiting_;
  const SharedBuffers& buffers_;
  const std::uint64_t generation_;
  Arrival arrival_;
  Lane lane_;
  Deadline deadline_;
  int lanes_ = 1;            // in use by the current operation
  std::uint64_t index_ = 0;  // operations so far
  std::uint64_t base_ = 0;   // chunks so far
  std::vector<const void*> inputs_;
};

}  // namespace af::local
