// SPDX-License-Identifier: Apache-2.0
// Operations in a world that lies on one node: shared memory only.
//
// Small ones: every rank copies its input into the segment, and each computes the whole result from
// there; one meeting. Large ones go by chunks: a chunk is copied in (unless `in` is shared memory),
// each rank reduces its stripe of it, the others' stripes are copied out (unless all `out` are
// shared: then the stripes are written straight to their places, in one chunk of any size). Several
// chunks are under way at once, so that no rank waits for another in each step.
#pragma once

#include "collectives/local/arrival.h"

namespace af::local {

class NodeOperations {
 public:
  // All arguments must outlive it.
  NodeOperations(const Topology& topology, int rank, const Segment& segment, Waiting& waiting,
                 const SharedBuffers& buffers);

  void run(const Operation& operation, const Deadline& deadline);

 private:
  void small(const Operation& operation);
  void all_reduce(const Operation& operation);
  void broadcast(const Operation& operation);
  void all_gather(const Operation& operation);
  void reduce_scatter(const Operation& operation);

  // Meets the others; `chunk_is_in`: what has to be in the segment by then is.
  void meet(const Operation& operation, const Place& in, const Place& out);
  std::uint64_t tick(std::size_t chunk) const { return base_ + chunk + 1; }
  void publish_in(std::size_t chunk);
  void publish_reduced(std::size_t chunk);
  void await_reduced(std::size_t chunk);

  const int ranks_;
  const int self_;
  const Segment& segment_;
  Waiting& waiting_;
  const SharedBuffers& buffers_;
  Arrival arrival_;
  Clock::time_point deadline_;
  std::uint64_t index_ = 0;  // operations so far
  std::uint64_t base_ = 0;   // chunks so far: the counters' value when an operation begins
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

}  // namespace af::local
