// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/topology.h"

#include <algorithm>
#include <map>

namespace af::local {

Topology make_topology(const std::vector<std::string>& identities) {
  Topology topology;
  std::map<std::string, int> known;
  for (int rank = 0; rank < int(identities.size()); ++rank) {
    const auto [place, is_new] = known.emplace(identities[rank], int(topology.nodes.size()));
    if (is_new) topology.nodes.emplace_back();
    auto& node = topology.nodes[place->second];
    topology.node_of.push_back(place->second);
    topology.index_of.push_back(int(node.size()));
    node.push_back(rank);
  }
  topology.lanes = int(identities.size());
  for (const auto& node : topology.nodes) {
    topology.lanes = std::min(topology.lanes, int(node.size()));
  }
  return topology;
}

std::vector<int> Topology::node_major_positions() const {
  std::vector<int> positions(node_of.size());
  int next = 0;
  for (const auto& node : nodes) {
    for (int rank : node) positions[rank] = next++;
  }
  return positions;
}

std::string Topology::description() const {
  std::string text = std::to_string(world_size()) + (world_size() == 1 ? " rank" : " ranks");
  text += " on " + std::to_string(nodes.size()) + (nodes.size() == 1 ? " node" : " nodes");
  if (nodes.size() > 1 && nodes.size() <= 16) {
    std::string sizes;
    for (const auto& node : nodes) {
      sizes += (sizes.empty() ? "" : "+") + std::to_string(node.size());
    }
    text += " (" + sizes + ")";
  }
  return text;
}

}  // namespace af::local
