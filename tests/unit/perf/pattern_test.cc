// SPDX-License-Identifier: Apache-2.0
// The checker itself: it must pass what is right and see every kind of wrong.
#include "perf/pattern.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "perf/words.h"

namespace af::perf {
namespace {

constexpr int kWorld = 3;
constexpr std::size_t kCount = 37;

// What a correct backend computes, by a loop over doubles and a rounding at the end.
std::vector<double> expected(ReduceOp op, bool whole) {
  std::vector<double> result(kCount);
  std::vector<double> input(kCount);
  for (int rank = 0; rank < kWorld; ++rank) {
    fill(input.data(), kCount, DataType::f64, rank);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (rank == 0)
        result[i] = input[i];
      else if (op == ReduceOp::min)
        result[i] = std::min(result[i], input[i]);
      else if (op == ReduceOp::max)
        result[i] = std::max(result[i], input[i]);
      else
        result[i] += input[i];
    }
  }
  for (double& value : result) {
    if (op == ReduceOp::avg) value = whole ? static_cast<int>(value / kWorld) : value / kWorld;
  }
  return result;
}

TEST(Pattern, DiffersBetweenRanksAndPlaces) {
  std::vector<double> a(kCount), b(kCount);
  fill(a.data(), kCount, DataType::f64, 0);
  fill(b.data(), kCount, DataType::f64, 1);
  EXPECT_NE(a, b);
  fill(b.data(), kCount, DataType::f64, 0, 1);  // begins one element later
  EXPECT_TRUE(std::equal(a.begin() + 1, a.end(), b.begin()));
  EXPECT_NE(a, b);
}

TEST(Pattern, AcceptsTheRightResult) {
  for (const ReduceOp op : parse_reductions("all")) {
    const auto real = expected(op, false), whole = expected(op, true);
    std::vector<float> floats(real.begin(), real.end());
    std::vector<std::int8_t> bytes(whole.begin(), whole.end());
    EXPECT_EQ(count_wrong_reduced(floats.data(), kCount, DataType::f32, op, kWorld), 0u);
    EXPECT_EQ(count_wrong_reduced(bytes.data(), kCount, DataType::i8, op, kWorld), 0u);
    EXPECT_EQ(count_wrong_reduced(real.data() + 5, kCount - 5, DataType::f64, op, kWorld, 5), 0u);
  }
}

TEST(Pattern, SeesOneWrongElement) {
  for (const DataType type : parse_types("all")) {
    std::vector<char> values(kCount * size_of(type));
    fill(values.data(), kCount, type, 1);
    EXPECT_EQ(count_wrong_copied(values.data(), kCount, type, 1), 0u) << name_of(type);
    EXPECT_GT(count_wrong_copied(values.data(), kCount, type, 0), 0u) << name_of(type);
    fill(values.data() + 7 * size_of(type), 1, type, 1, 8);  // the element of another place
    EXPECT_EQ(count_wrong_copied(values.data(), kCount, type, 1), 1u) << name_of(type);
  }
}

TEST(Pattern, SeesMemoryThatNobodyWrote) {
  for (const DataType type : parse_types("all")) {
    for (const ReduceOp op : parse_reductions("all")) {
      std::vector<char> values(kCount * size_of(type), 0x5a);
      EXPECT_EQ(count_wrong_reduced(values.data(), kCount, type, op, kWorld), kCount);
    }
  }
}

TEST(Pattern, TakesNoSumForAnAverage) {
  const auto sum = expected(ReduceOp::sum, false);
  EXPECT_GT(count_wrong_reduced(sum.data(), kCount, DataType::f64, ReduceOp::avg, kWorld), 0u);
}

}  // namespace
}  // namespace af::perf
