// SPDX-License-Identifier: Apache-2.0
#include "train/data/random_order.h"

#include <gtest/gtest.h>

#include <numeric>

namespace af::train {
namespace {

// As written down: from the end, each with one of those before it or itself.
std::vector<int64_t> plainly_shuffled(std::size_t count, SplitMix64 random) {
  std::vector<int64_t> values(count);
  std::iota(values.begin(), values.end(), int64_t{0});
  for (std::size_t i = count; i > 1; --i) {
    uint64_t value = random.next();
    while (value < i && value < (0 - i) % i) value = random.next();
    std::swap(values[i - 1], values[value % i]);
  }
  return values;
}

TEST(Shuffle, IsFisherAndYatesWhateverTheSize) {
  for (const std::size_t count : {0, 1, 2, 3, 31, 32, 33, 34, 65, 4095, 4096, 4097, 100000}) {
    std::vector<int64_t> values(count);
    std::iota(values.begin(), values.end(), int64_t{0});
    shuffle(values, stream_of(7, 3));
    EXPECT_EQ(values, plainly_shuffled(count, stream_of(7, 3))) << count;
  }
}

// The published first numbers of splitmix64 from state 0.
TEST(SplitMix64, IsThePublishedGenerator) {
  SplitMix64 random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4ULL);
  EXPECT_EQ(random.next(), 0x06c45d188009454fULL);
}

TEST(SplitMix64, BelowIsTheRemainderForBoundsOfEverySize) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const uint64_t add : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << bits) - 1}) {
      const uint64_t bound = (uint64_t{1} << bits) + add;
      SplitMix64 random(bound), same(bound);
      for (int i = 0; i < 1000; ++i) {
        uint64_t value = same.next();
        while (value < bound && value < (0 - bound) % bound) value = same.next();
        ASSERT_EQ(random.below(bound), value % bound) << bound;
      }
    }
  }
}

}  // namespace
}  // namespace af::train
