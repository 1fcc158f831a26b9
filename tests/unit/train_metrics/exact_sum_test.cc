// SPDX-License-Identifier: Apache-2.0
#include "af/train/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace af::train {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

ExactSum of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}

TEST(ExactSum, IsTheDoubleNearestToTheTrueSum) {
  const double half_ulp = 0x1p-53;  // of 1
  const struct {
    std::vector<double> values;
    double sum;
  } cases[] = {
      {{}, 0},
      {{0.0, -0.0}, 0},
      {{1, 2, 3.5}, 6.5},
      {{1e100, 1, -1e100}, 1},
      {{1e308, 1e308, -1e308}, 1e308},  // beyond the largest double in between
      {{kMax, kMax, -kMax, -kMax}, 0},
      {{kMax, kMax}, kInfinity},
      {{-kMax, -kMax}, -kInfinity},
      {{kTiny, kTiny, kTiny}, 3 * kTiny},
      {{-kTiny}, -kTiny},
      {{kMax, kTiny, -kMax}, kTiny},
      {{0x1p-1022, -kTiny}, 0x1p-1022 - kTiny},
      {{1, half_ulp}, 1},                         // a tie goes to even
      {{1, half_ulp, kTiny}, 1 + 0x1p-52},        // just above a tie
      {{1, half_ulp, -kTiny}, 1},                 // just below it
      {{1 + 0x1p-52, half_ulp}, 1 + 0x1p-51},     // a tie, up to even
      {{-1, -half_ulp, -kTiny}, -(1 + 0x1p-52)},  // the same below zero
      {{0.1, 0.2, 0.3, -0.6}, 0x1p-55},
      {{kInfinity, 1}, kInfinity},
      {{-kInfinity, 1}, -kInfinity},
      {{kInfinity, -kInfinity}, kNaN},
      {{kNaN, 1}, kNaN},
  };
  for (const auto& one : cases) {
    const double got = of(one.values).value();
    if (std::isnan(one.sum))
      EXPECT_TRUE(std::isnan(got));
    else
      EXPECT_EQ(got, one.sum) << testing::PrintToString(one.values);
  }
}

TEST(ExactSum, HasNoOrderAndNoShares) {
  std::mt19937_64 random(7);
  std::vector<double> values;
  for (int i = 0; i < 4000; ++i) {  // of all exponents, so that plain sums differ wildly
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value) && std::abs(value) < 1e300) values.push_back(value);
  }
  const double whole = of(values).value();
  for (int shares = 1; shares <= 7; ++shares) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> ranks(static_cast<std::size_t>(shares));
    for (const double value : values) ranks[random() % ranks.size()].add(value);
    std::vector<double> parts(ExactSum::parts_count());
    for (const ExactSum& rank : ranks) {
      const auto own = rank.parts();
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i] += own[i];
    }
    ExactSum all;
    all.set_parts(parts);
    EXPECT_EQ(all.value(), whole) << shares;
    all.subtract(of(values));
    EXPECT_EQ(all.value(), 0);
  }
}

TEST(ExactSum, ProductsAreNotRounded) {
  const double x = 1 + 0x1p-30;
  ExactSum sum;
  sum.add_product(x, x);  // 1 + 2^-29 + 2^-60
  sum.add(-1);
  sum.add(-0x1p-29);
  EXPECT_EQ(sum.value(), 0x1p-60);
  sum.add_product(kInfinity, 0);
  EXPECT_TRUE(std::isnan(sum.value()));
}

TEST(ExactSum, TheExpansionHasTheRest) {
  EXPECT_EQ(of({1e20, 1, 0x1p-40, 0x1p-100}).expansion(),
            (std::array<double, 3>{1e20, 1 + 0x1p-40, 0x1p-100}));
  EXPECT_EQ(of({-3}).expansion(), (std::array<double, 3>{-3, 0, 0}));
}

TEST(ExactSum, IsMultipliedByCounts) {
  for (const int64_t by : {int64_t{1}, int64_t{3}, int64_t{1} << 40, (int64_t{1} << 61) + 1}) {
    ExactSum sum = of({1e20, 0.1, -1e-200, -7});
    sum.multiply(by);
    ExactSum other;
    for (const double value : {1e20, 0.1, -1e-200, -7.0})
      for (const double factor : {double(by / 1024 * 1024), double(by % 1024)})
        other.add_product(value, factor);
    sum.subtract(other);
    EXPECT_EQ(sum.value(), 0) << by;
  }
  ExactSum negative = of({-2});
  negative.multiply(5);
  EXPECT_EQ(negative.value(), -10);
  negative.multiply(0);
  EXPECT_EQ(negative.value(), 0);
}

TEST(ExactSum, OtherPartsAreRefused) {
  ExactSum sum;
  EXPECT_THROW(sum.set_parts({1, 2}), std::invalid_argument);
}

}  // namespace
}  // namespace af::train
