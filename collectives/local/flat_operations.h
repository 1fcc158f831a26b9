// SPDX-License-Identifier: Apache-2.0
// Operations in a world with one rank on each of several nodes: TCP only, straight from and into
// the user's buffers. What satellites on different nodes use.
#pragma once

#include "collectives/backend.h"
#include "collectives/local/lane.h"

namespace af::local {

class FlatOperations {
 public:
  FlatOperations(const Topology& topology, int rank, Exchange& exchange, std::uint64_t generation);
  void run(const Operation& operation, const Deadline& deadline);

 private:
  void all_reduce(const Operation& operation);
  void all_gather(const Operation& operation);
  void reduce_scatter(const Operation& operation);

  const Topology& topology_;
  const int rank_;
  const std::uint64_t generation_;
  Lane lane_;
  std::uint64_t index_ = 0;
  std::vector<char> scaled_;  // a reduce_scatter's input times its pre_scale
};

}  // namespace af::local
