// SPDX-License-Identifier: Apache-2.0
#include "common/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace af {
namespace {

TEST(EditDistance, CountsInsertionDeletionReplacementAndSwap) {
  const struct {
    const char *a, *b;
    int expected;
  } table[] = {
      {"", "", 0},         {"abc", "abc", 0},   {"", "abc", 3},       {"abc", "", 3},
      {"kept", "kapt", 1}, {"kept", "kpet", 1}, {"spare", "spar", 1}, {"kitten", "sitting", 3},
      {"ab", "ba", 1},     {"a", "b", 1},
  };
  for (const auto& row : table) {
    EXPECT_EQ(edit_distance(row.a, row.b), row.expected) << row.a << " " << row.b;
    EXPECT_EQ(edit_distance(row.b, row.a), row.expected) << row.b << " " << row.a;
  }
}

TEST(NearestName, NothingIfNothingIsNear) {
  const std::vector<std::string> names = {"memory_gb", "max_per_node", "total", "mig"};
  EXPECT_EQ(nearest_name("memory", names), "memory_gb");
  EXPECT_EQ(nearest_name("max_per_nod", names), "max_per_node");
  EXPECT_EQ(nearest_name("totals", names), "total");
  EXPECT_EQ(nearest_name("frequency", names), std::nullopt);
  EXPECT_EQ(nearest_name("", names), std::nullopt);
  EXPECT_EQ(nearest_name("xx", {}), std::nullopt);
  EXPECT_EQ(nearest_name("abc", names), std::nullopt) << "three changes of three letters";
}

TEST(NearestName, WordsForAMessage) {
  const std::vector<std::string> names = {"kept", "spare"};
  EXPECT_EQ(did_you_mean("spear", names), ", did you mean 'spare'?");
  EXPECT_EQ(did_you_mean("elsewhere", names), "");
}

}  // namespace
}  // namespace af
