// SPDX-License-Identifier: Apache-2.0
// What goes between nodes in which order, and which way an all-reduce takes.
#include "collectives/local/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "collectives/local/lane.h"

namespace af::local {
namespace {

std::string text(const std::vector<Message>& order) {
  std::string all;
  for (const Message& message : order) {
    all += (message.is_result ? "r" : "c") + std::to_string(message.segment) + " ";
  }
  return all;
}

TEST(WireOrder, ResultsFollowTheContributionsBehindThem) {
  const struct {
    std::size_t contributions, results, lead;
    const char* wanted;
  } kCases[] = {
      {0, 0, 1, ""},
      {1, 0, 1, "c0 "},
      {0, 1, 1, "r0 "},
      {1, 1, 1, "c0 r0 "},
      {4, 4, 1, "c0 c1 r0 c2 r1 c3 r2 r3 "},
      {4, 4, 3, "c0 c1 c2 c3 r0 r1 r2 r3 "},
      {6, 4, 3, "c0 c1 c2 c3 r0 c4 r1 c5 r2 r3 "},
      {4, 0, 2, "c0 c1 c2 c3 "},
      {0, 3, 2, "r0 r1 r2 "},
      {4, 1, 2, "c0 c1 c2 r0 c3 "},
      {1, 4, 1, "c0 r0 r1 r2 r3 "},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(text(wire_order(one.contributions, one.results, one.lead)), one.wanted)
        << one.contributions << " and " << one.results;
  }
}

// A result can be waited for only when what it is made of has been asked for: else two nodes that
// send in this order would wait for each other.
TEST(WireOrder, NoResultGoesBeforeItsContribution) {
  for (std::size_t contributions = 0; contributions < 9; ++contributions) {
    for (std::size_t results = 0; results < 9; ++results) {
      std::size_t seen = 0;
      for (const Message& message : wire_order(contributions, results, 2)) {
        if (!message.is_result) {
          EXPECT_EQ(message.segment, seen++);
        } else {
          EXPECT_GE(seen, std::min(contributions, message.segment + 1));
        }
      }
      EXPECT_EQ(seen, contributions);
    }
  }
}

TEST(WireOrder, NodesShareTheLeadOfALink) {
  const std::pair<int, std::size_t> kCases[] = {{2, 8}, {3, 4}, {5, 2}, {9, 2}, {100, 2}};
  for (const auto& [nodes, lead] : kCases) EXPECT_EQ(lead_of(nodes), lead) << nodes;
}

TEST(ChooseWay, SmallInOneStepLargeInTwo) {
  constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
  const struct {
    int nodes;
    std::size_t bytes;
    Way wanted;
  } kCases[] = {
      {2, 4, Way::one_step},           {2, 64 * kKiB, Way::one_step},
      {2, kMiB / 2, Way::one_step},    {2, kMiB / 2 + 4, Way::two_steps},
      {2, 100 * kMiB, Way::two_steps}, {3, 4, Way::one_step},
      {3, 32 * kKiB, Way::one_step},   {3, 32 * kKiB + 4, Way::two_steps},
      {4, 6000, Way::one_step},        {4, 24 * kKiB, Way::two_steps},
      {17, 4 * kKiB, Way::one_step},   {17, 4 * kKiB + 4, Way::two_steps},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(choose_way(one.nodes, one.bytes), one.wanted) << one.nodes << " " << one.bytes;
  }
}

}  // namespace
}  // namespace af::local
