// SPDX-License-Identifier: Apache-2.0
#include "spank/step_cpus.h"

#include <gtest/gtest.h>

namespace af::spank {
namespace {

using Cpus = std::vector<int>;

TEST(CpusPerNodeTest, IsSlurmsCompressedList) {
  EXPECT_EQ(parse_cpus_per_node("16"), Cpus{16});
  EXPECT_EQ(parse_cpus_per_node("16(x2),8"), (Cpus{16, 16, 8}));
  EXPECT_EQ(parse_cpus_per_node(""), Cpus{});
  EXPECT_EQ(parse_cpus_per_node("many"), Cpus{});
  EXPECT_EQ(parse_cpus_per_node("8(x99999999999)"), Cpus{});
}

TEST(TasksFitTest, OnWholeTasksPerNode) {
  EXPECT_TRUE(tasks_fit(2, 8, 0, {16}));
  EXPECT_FALSE(tasks_fit(3, 8, 0, {16}));
  EXPECT_FALSE(tasks_fit(3, 8, 0, {12, 12}));  // 24 CPUs, but none for a third task
  EXPECT_TRUE(tasks_fit(3, 8, 0, {16, 8}));
  EXPECT_FALSE(tasks_fit(2, 8, 1, {16, 8}));  // one node, and it may be the small one
}

}  // namespace
}  // namespace af::spank
