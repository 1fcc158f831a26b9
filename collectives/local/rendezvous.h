// SPDX-License-Identifier: Apache-2.0
// How the ranks of a world find each other through the Store, and what they hold afterwards.
#pragma once

#include <vector>

#include "collectives/local/handshake.h"
#include "collectives/local/segment.h"

namespace af::local {

struct Membership {
  Topology topology;
  std::vector<std::string> places;  // by rank, for messages: "n2, pid 4711"
  std::vector<Link> links;          // by rank, ascending
  Segment segment;                  // shared with the ranks of this node
};

// Collective. Throws CommunicatorError: timeout (with the ranks that did not come), store, system.
Membership meet(const Options& options);

// Size and number of the chunks under way in the segment of a world of so many nodes.
std::size_t stage_bytes(std::size_t node_count);
int stage_count(std::size_t node_count);

}  // namespace af::local
