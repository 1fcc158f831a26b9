// SPDX-License-Identifier: Apache-2.0
#include "perf/sizes.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af::perf {
namespace {

TEST(ParseBytes, ReadsUnitsOfTwoToTheTen) {
  const std::vector<std::pair<std::string, std::size_t>> table = {
      {"0", 0},           {"8", 8},           {"8B", 8},         {"64K", 65536},
      {"64k", 65536},     {"25M", 26214400},  {"1MiB", 1048576}, {"2MB", 2097152},
      {"1G", 1073741824}, {"1T", 1ull << 40},
  };
  for (const auto& [text, bytes] : table) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(ParseBytes, RefusesWhatIsNotASize) {
  for (const char* text :
       {"", "x", "-1", "1.5M", "8Q", "8KK", "8 K", "99999999999T", "99999999999999999999999"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
}

TEST(SizesBetween, MultipliesUpToTheLast) {
  EXPECT_EQ(sizes_between(8, 128, 4), (std::vector<std::size_t>{8, 32, 128}));
  EXPECT_EQ(sizes_between(8, 127, 4), (std::vector<std::size_t>{8, 32}));
  EXPECT_EQ(sizes_between(100, 100, 2), (std::vector<std::size_t>{100}));
}

TEST(SizesBetween, AlwaysMovesOn) {
  EXPECT_EQ(sizes_between(0, 4, 2), (std::vector<std::size_t>{0, 1, 2, 4}));
  EXPECT_EQ(sizes_between(1, 3, 1.1), (std::vector<std::size_t>{1, 2, 3}));
}

TEST(SizesBetween, RefusesNonsense) {
  EXPECT_THROW(sizes_between(9, 8, 2), Error);
  EXPECT_THROW(sizes_between(8, 9, 1), Error);
  EXPECT_THROW(sizes_between(8, 9, 0.0 / 0.0), Error);
}

TEST(ShapeOf, CountsAsTheCallsDo) {
  const Shape reduce = shape_of(OperationKind::all_reduce, 1001, 4, 3);
  EXPECT_EQ(reduce.count, 250u);
  EXPECT_EQ(reduce.bytes, 1000u);
  const Shape gather = shape_of(OperationKind::all_gather, 1001, 4, 3);
  EXPECT_EQ(gather.count, 83u);  // per rank
  EXPECT_EQ(gather.bytes, 83u * 4 * 3);
  EXPECT_EQ(shape_of(OperationKind::barrier, 1001, 4, 3).bytes, 0u);
}

TEST(Bandwidth, FollowsNcclTests) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(2'000'000'000, 0.5), 4.0);
  EXPECT_EQ(algorithm_bandwidth(8, 0), 0);
  EXPECT_DOUBLE_EQ(bus_factor(OperationKind::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(OperationKind::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(OperationKind::reduce_scatter, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(OperationKind::broadcast, 4), 1.0);
}

}  // namespace
}  // namespace af::perf
