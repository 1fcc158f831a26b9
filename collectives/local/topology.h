// SPDX-License-Identifier: Apache-2.0
// Which ranks share a node, and who of a node talks to other nodes. Pure: the same on every rank.
#pragma once

#include <string>
#include <vector>

namespace af::local {

struct Topology {
  std::vector<std::vector<int>> nodes;  // ranks of each node, ascending; nodes by their lowest rank
  std::vector<int> node_of;             // by rank
  std::vector<int> index_of;            // by rank: position in its node, the local index
  // The first `lanes` ranks of each node exchange with their like on other nodes, each a share of
  // the data. As many as the smallest node has ranks.
  int lanes = 1;

  int world_size() const { return int(node_of.size()); }
  bool linked(int a, int b) const {
    if (a == b) return false;
    if (node_of[a] == node_of[b]) return true;
    return index_of[a] == index_of[b] && index_of[a] < lanes;
  }
  // Position of a rank when ranks are counted node by node.
  std::vector<int> node_major_positions() const;
  std::string description() const;  // "4 ranks on 2 nodes (2+2)"
};

// Ranks with equal identities share a node.
Topology make_topology(const std::vector<std::string>& identities);

}  // namespace af::local
