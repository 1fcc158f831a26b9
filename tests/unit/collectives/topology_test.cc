// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/topology.h"

#include <gtest/gtest.h>

#include "collectives/local/stripe.h"

namespace af::local {
namespace {

struct Case {
  std::vector<std::string> identities;
  std::vector<std::vector<int>> nodes;
  int lanes;
  std::vector<int> positions;
  std::string description;
};

TEST(Topology, TableOfWorlds) {
  const Case cases[] = {
      {{"a"}, {{0}}, 1, {0}, "1 rank on 1 node"},
      {{"a", "a", "a"}, {{0, 1, 2}}, 3, {0, 1, 2}, "3 ranks on 1 node"},
      {{"a", "b"}, {{0}, {1}}, 1, {0, 1}, "2 ranks on 2 nodes (1+1)"},
      {{"a", "a", "b", "b"}, {{0, 1}, {2, 3}}, 2, {0, 1, 2, 3}, "4 ranks on 2 nodes (2+2)"},
      {{"b", "a", "b", "c"}, {{0, 2}, {1}, {3}}, 1, {0, 2, 1, 3}, "4 ranks on 3 nodes (2+1+1)"},
      {{"a", "b", "b", "a", "b"},
       {{0, 3}, {1, 2, 4}},
       2,
       {0, 2, 3, 1, 4},
       "5 ranks on 2 nodes (2+3)"},
  };
  for (const Case& one : cases) {
    const Topology topology = make_topology(one.identities);
    EXPECT_EQ(topology.nodes, one.nodes) << one.description;
    EXPECT_EQ(topology.lanes, one.lanes) << one.description;
    EXPECT_EQ(topology.node_major_positions(), one.positions) << one.description;
    EXPECT_EQ(topology.description(), one.description);
  }
}

TEST(Topology, LinksAreWithinANodeAndAlongLanes) {
  const Topology topology = make_topology({"a", "a", "a", "b", "b"});
  EXPECT_TRUE(topology.linked(0, 2));
  EXPECT_TRUE(topology.linked(0, 3));   // lane 0
  EXPECT_TRUE(topology.linked(4, 1));   // lane 1
  EXPECT_FALSE(topology.linked(0, 4));  // different lanes
  EXPECT_FALSE(topology.linked(2, 4));  // rank 2 has no like on the other node
  EXPECT_FALSE(topology.linked(1, 1));
}

TEST(Stripes, CoverEverythingOnceInOrder) {
  for (const std::size_t size : {1, 2, 4, 8}) {
    for (const std::size_t total : {0, 1, 15, 16, 17, 63, 64, 65, 1000, 300'007}) {
      for (const int shares : {1, 2, 3, 5, 8}) {
        std::size_t next = 0;
        for (int i = 0; i < shares; ++i) {
          const Stripe s = stripe(total, i, shares, size);
          ASSERT_EQ(s.begin, next);
          if (s.count > 0) {
            ASSERT_EQ(s.begin * size % 64, 0u);
          }
          next = s.begin + s.count;
        }
        ASSERT_EQ(next, total) << size << " " << shares;
      }
    }
  }
}

}  // namespace
}  // namespace af::local
