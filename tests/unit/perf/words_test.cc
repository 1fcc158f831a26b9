// SPDX-License-Identifier: Apache-2.0
#include "perf/words.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af::perf {
namespace {

TEST(Words, TakeBothNames) {
  EXPECT_EQ(parse_types("bf16"), std::vector{DataType::bf16});
  EXPECT_EQ(parse_types("half"), std::vector{DataType::f16});
  EXPECT_EQ(parse_operations("AllReduce"), std::vector{OperationKind::all_reduce});
  EXPECT_EQ(parse_types("all").size(), 10u);
  EXPECT_EQ(parse_backend("auto"), BackendKind::automatic);
}

TEST(Words, RefuseWithTheGoodOnes) {
  try {
    parse_reductions("prod");
    FAIL() << "prod was taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "unknown reduction 'prod': one of sum, avg, min, max, all");
  }
  EXPECT_THROW(parse_backend("all"), Error);
}

}  // namespace
}  // namespace af::perf
