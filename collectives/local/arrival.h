// SPDX-License-Identifier: Apache-2.0
// The beginning of every operation inside a node: each rank says what it calls and where its
// buffers lie, waits for the others, and checks that all called the same.
#pragma once

#include <vector>

#include "collectives/backend.h"
#include "collectives/local/shared_buffers.h"
#include "collectives/local/waiting.h"

namespace af::local {

class Arrival {
 public:
  // All arguments must outlive it.
  Arrival(const Topology& topology, int rank, const Segment& segment, Waiting& waiting,
          const SharedBuffers& buffers);

  // `index`: number of the operation; `tick`: value of the `in` counter that says "here".
  // `in` and `out`: where the buffers lie, {} to have them treated as private memory.
  void announce(const Operation& operation, std::uint64_t index, std::uint64_t tick,
                const Place& in, const Place& out);
  // Throws what Waiting throws, and mismatch.
  void gather(const Operation& operation, std::uint64_t index, std::uint64_t tick,
              Clock::time_point deadline, int world_size);

  // After gather(), by local index; null where private.
  const std::vector<char*>& in() const { return in_; }
  const std::vector<char*>& out() const { return out_; }
  const std::vector<double>& scales() const { return scales_; }
  bool all_in_shared() const { return all_in_; }
  bool all_out_shared() const { return all_out_; }

 private:
  const std::vector<int>& mates_;
  const int index_;
  const Segment& segment_;
  Waiting& waiting_;
  const SharedBuffers& buffers_;
  std::vector<char*> in_;
  std::vector<char*> out_;
  std::vector<double> scales_;
  bool all_in_ = false;
  bool all_out_ = false;
};

}  // namespace af::local
