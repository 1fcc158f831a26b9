// SPDX-License-Identifier: Apache-2.0
// The arithmetic: conversions of 16-bit floats over all values, kernels against a plain loop.
#include "collectives/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "collectives/kernels.h"
#include "collectives/streaming.h"
#include "tests/unit/collectives/plain_loop.h"

namespace af::test {
namespace {

float f16_by_arithmetic(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(float(mantissa), -24);
  return sign * std::ldexp(float(mantissa + 1024), exponent - 25);
}

TEST(Half, EveryF16WidensExactlyAndComesBack) {
  std::vector<std::uint16_t> all(65536), back(65536);
  std::vector<float> wide(65536);
  for (unsigned i = 0; i < 65536; ++i) all[i] = std::uint16_t(i);
  widen_f16(all.data(), wide.data(), all.size());
  round_f16(wide.data(), back.data(), all.size());
  for (unsigned i = 0; i < 65536; ++i) {
    const float wanted = f16_by_arithmetic(all[i]);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(wide[i]) && std::isnan(f16_to_f32(all[i]))) << i;
      EXPECT_TRUE(std::isnan(f16_to_f32(back[i]))) << i;
      continue;
    }
    ASSERT_EQ(wide[i], wanted) << i;
    ASSERT_EQ(f16_to_f32(all[i]), wanted) << i;
    ASSERT_EQ(back[i], all[i]) << i;
    ASSERT_EQ(f32_to_f16(wide[i]), all[i]) << i;
  }
}

TEST(Half, F16RoundsToNearestEvenAsTheProcessorDoes) {
  // Around every border between two neighbours: below the middle, the middle, above it.
  std::vector<float> values;
  for (unsigned i = 0; i < 0x7c00; ++i) {
    const float a = f16_by_arithmetic(std::uint16_t(i));
    const float b = i == 0x7bff ? 65536.0f : f16_by_arithmetic(std::uint16_t(i + 1));
    const float middle = (a + b) / 2;
    for (const float v : {std::nextafter(middle, a), middle, std::nextafter(middle, b), -middle}) {
      values.push_back(v);
    }
    const unsigned even = i % 2 == 0 ? i : i + 1;
    ASSERT_EQ(f32_to_f16(middle), even) << i;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, a)), i) << i;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, b)), i + 1) << i;
  }
  std::vector<std::uint16_t> rounded(values.size());
  round_f16(values.data(), rounded.data(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(rounded[i], f32_to_f16(values[i])) << values[i];
  }
}

TEST(Half, Bf16RoundsToNearestEven) {
  for (unsigned i = 0; i < 0x7f80; ++i) {
    const float a = bf16_to_f32(std::uint16_t(i));
    ASSERT_EQ(f32_to_bf16(a), i);
    const float middle = std::bit_cast<float>((i << 16) | 0x8000);
    ASSERT_EQ(f32_to_bf16(middle), i % 2 == 0 ? i : i + 1) << i;
    ASSERT_EQ(f32_to_bf16(-middle), 0x8000 | (i % 2 == 0 ? i : i + 1)) << i;
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(f32_to_bf16(INFINITY), 0x7f80);
}

TEST(Reduce, EveryTypeOpAndNumberOfInputsAndOutputs) {
  const std::size_t count = 2500;  // two blocks and a half
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const int inputs : {1, 2, 3, 7}) {
        for (const int outputs : {1, 3}) {
          std::vector<Bytes> in, out(std::size_t(outputs), Bytes(count * size_of(type)));
          std::vector<const void*> ins;
          std::vector<void*> outs;
          for (int r = 0; r < inputs; ++r) in.push_back(input_of(type, r, count));
          for (const Bytes& one : in) ins.push_back(one.data());
          for (Bytes& one : out) outs.push_back(one.data());
          reduce({type, op, ins.data(), nullptr, inputs, outs.data(), outputs, count,
                  op == ReduceOp::avg ? inputs : 1});
          const Bytes wanted = reduced(type, op, inputs, 0, count);
          for (const Bytes& one : out) {
            ASSERT_TRUE(one == wanted) << name_of(type) << " " << name_of(op) << " " << inputs;
          }
        }
      }
    }
  }
}

TEST(Reduce, AnyInputMayBeAnOutput) {
  const std::size_t count = 1500;
  for (const DataType type : kTypes) {
    for (const int inputs : {1, 2, 4}) {
      for (int own = 0; own < inputs; ++own) {
        std::vector<Bytes> in;
        std::vector<const void*> ins;
        for (int r = 0; r < inputs; ++r) in.push_back(input_of(type, r, count));
        for (const Bytes& one : in) ins.push_back(one.data());
        Bytes other(count * size_of(type));
        void* outs[] = {in[std::size_t(own)].data(), other.data()};
        reduce({type, ReduceOp::sum, ins.data(), nullptr, inputs, outs, 2, count, 1});
        const Bytes wanted = reduced(type, ReduceOp::sum, inputs, 0, count);
        ASSERT_TRUE(in[std::size_t(own)] == wanted) << name_of(type) << own;
        ASSERT_TRUE(other == wanted) << name_of(type) << own;
      }
    }
  }
}

TEST(Reduce, IntegersWrapAndAverageTowardsZero) {
  const std::int8_t a[] = {100, -100, -3}, b[] = {100, -100, 0};
  std::int8_t out[3];
  const void* ins[] = {a, b};
  void* outs[] = {out};
  reduce({DataType::i8, ReduceOp::sum, ins, nullptr, 2, outs, 1, 3, 1});
  EXPECT_EQ(out[0], std::int8_t(200));
  EXPECT_EQ(out[1], std::int8_t(-200));
  reduce({DataType::i8, ReduceOp::avg, ins, nullptr, 2, outs, 1, 3, 2});
  EXPECT_EQ(out[2], -1);
  const std::int64_t big[] = {std::numeric_limits<std::int64_t>::max()}, one[] = {1};
  std::int64_t wrapped[1];
  const void* bigs[] = {big, one};
  void* wraps[] = {wrapped};
  reduce({DataType::i64, ReduceOp::sum, bigs, nullptr, 2, wraps, 1, 1, 1});
  EXPECT_EQ(wrapped[0], std::numeric_limits<std::int64_t>::min());
}

TEST(Reduce, HalfSumsAreRoundedOnce) {
  // 2048 + 1 is no f16; 2048 + 1 + 1 is: rounding after each step would lose both.
  const std::uint16_t a[] = {f32_to_f16(2048)}, b[] = {f32_to_f16(1)};
  std::uint16_t out[1];
  const void* ins[] = {a, b, b};
  void* outs[] = {out};
  reduce({DataType::f16, ReduceOp::sum, ins, nullptr, 3, outs, 1, 1, 1});
  EXPECT_EQ(f16_to_f32(out[0]), 2050.0f);
}

// Any bits at all: NaNs with payloads, infinities, subnormals.
Bytes random_bits(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  Bytes all(bytes);
  for (unsigned char& one : all) one = static_cast<unsigned char>(random());
  return all;
}

TEST(Kernels, EveryInstructionSetConvertsToTheSameBits) {
  const std::size_t count = 65536 + 5;
  std::vector<std::uint16_t> halves(count);
  for (std::size_t i = 0; i < count; ++i) halves[i] = std::uint16_t(i);
  std::vector<float> values(count);
  const Bytes bits = random_bits(count * 4, 1);
  std::memcpy(values.data(), bits.data(), bits.size());
  for (const Kernels& kernels : usable_kernels()) {
    std::vector<float> f16(count), bf16(count);
    std::vector<std::uint16_t> as_f16(count), as_bf16(count);
    kernels.widen_f16(halves.data(), f16.data(), count);
    kernels.widen_bf16(halves.data(), bf16.data(), count);
    kernels.round_f16(values.data(), as_f16.data(), count);
    kernels.round_bf16(values.data(), as_bf16.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits_of = [](float v) { return std::bit_cast<std::uint32_t>(v); };
      ASSERT_EQ(bits_of(f16[i]), bits_of(f16_to_f32(halves[i]))) << kernels.name << " " << i;
      ASSERT_EQ(bits_of(bf16[i]), bits_of(bf16_to_f32(halves[i]))) << kernels.name << " " << i;
      ASSERT_EQ(as_f16[i], f32_to_f16(values[i])) << kernels.name << " " << bits_of(values[i]);
      ASSERT_EQ(as_bf16[i], f32_to_bf16(values[i])) << kernels.name << " " << bits_of(values[i]);
    }
  }
}

// Sums that round differently in another order or with a fused multiply and add.
Bytes uneven(DataType type, unsigned seed, std::size_t count) {
  if (is_integer(type)) return random_bits(count * size_of(type), seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Bytes all(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    put(type, all.data(), i, normal(random) * std::exp2(double(random() % 8)));
  }
  return all;
}

TEST(Kernels, EveryInstructionSetReducesToTheSameBits) {
  const std::size_t count = 2500;
  const double scales[] = {0.3, 1.0, 1.7};
  const double whole[] = {3, 1, 2};
  for (const DataType type : kTypes) {
    const Bytes a = uneven(type, 1, count), b = uneven(type, 2, count), c = uneven(type, 3, count);
    const void* inputs[] = {a.data(), b.data(), c.data()};
    for (const ReduceOp op : kOps) {
      for (const int number : {1, 2, 3}) {
        Bytes first;
        for (const Kernels& kernels : usable_kernels()) {
          Bytes out(count * size_of(type));
          void* output = out.data();
          kernels.reduce({type, op, inputs, is_integer(type) ? whole : scales, number, &output, 1,
                          count, op == ReduceOp::avg ? 3 : 1});
          if (first.empty()) first = out;
          EXPECT_TRUE(out == first) << kernels.name << " " << name_of(type) << " " << name_of(op);
        }
      }
    }
  }
}

TEST(Streaming, CopiesEveryLengthAndAlignment) {
  const Bytes from = random_bits(1024, 4);
  for (std::size_t begin = 0; begin < 70; ++begin) {
    for (const std::size_t length : {std::size_t(0), std::size_t(1), std::size_t(63),
                                     std::size_t(64), std::size_t(200), std::size_t(640)}) {
      Bytes to(1024, 0x5a);
      copy_past_cache(to.data() + begin, from.data() + 3, length);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= begin && i < begin + length;
        ASSERT_EQ(to[i], inside ? from[3 + i - begin] : 0x5a) << begin << " " << length << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace af::test
