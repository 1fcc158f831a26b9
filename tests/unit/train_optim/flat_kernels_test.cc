// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/flat_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace af::train {
namespace {

// Odd, so that every variant has a tail; with values of all magnitudes.
constexpr std::size_t kCount = 1027;

template <typename T>
std::vector<T> values(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> all(kCount);
  for (T& value : all) {
    const int exponent = static_cast<int>(random() % 40) - 30;
    value =
        static_cast<T>(std::ldexp(static_cast<double>(random()) / 4294967296.0 - 0.5, exponent));
  }
  return all;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
void adam_has_the_same_bits_on_every_instruction_set() {
  const auto gradient = values<T>(1);
  for (const double decay : {0.0, 0.1})
    for (const bool decoupled : {false, true}) {
      AdamPass pass{0.37, 1e-2, 0.9, 0.999, 1e-8, decay, decoupled, 0.271, 0.002};
      std::vector<std::vector<T>> results;
      for (const InstructionSet set : instruction_sets()) {
        auto parameter = values<T>(2), first = values<T>(3), second = values<T>(4);
        for (T& value : second) value = std::abs(value);
        for (int step = 0; step < 3; ++step)
          adam_pass(set, pass, parameter.data(), gradient.data(), first.data(), second.data(),
                    kCount);
        for (auto* moments : {&first, &second})
          parameter.insert(parameter.end(), moments->begin(), moments->end());
        results.push_back(parameter);
      }
      for (const auto& result : results) EXPECT_TRUE(same_bits(result, results.front()));
    }
}

template <typename T>
void sgd_has_the_same_bits_on_every_instruction_set() {
  const auto gradient = values<T>(1);
  for (const double decay : {0.0, 0.1})
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const bool first : {false, true}) {
          SgdPass pass{0.37, 1e-2, momentum, nesterov ? 0 : 0.1, decay, nesterov, first};
          std::vector<std::vector<T>> results;
          for (const InstructionSet set : instruction_sets()) {
            auto parameter = values<T>(2), buffer = values<T>(3);
            sgd_pass(set, pass, parameter.data(), gradient.data(),
                     momentum == 0 ? nullptr : buffer.data(), kCount);
            parameter.insert(parameter.end(), buffer.begin(), buffer.end());
            results.push_back(parameter);
          }
          for (const auto& result : results) EXPECT_TRUE(same_bits(result, results.front()));
        }
}

// A product and a sum that are rounded once, not twice, would give another number here: that is
// what a build without -ffp-contract=off does on CPUs with such an instruction.
TEST(FlatKernelsContraction, ProductsAndSumsAreRoundedEach) {
  const float a = 1 + 0x1p-12F;  // a * a = 1 + 2^-11 + 2^-24, which rounds to 1 + 2^-11
  for (const InstructionSet set : instruction_sets()) {
    std::vector<float> parameter(64, -1 - 0x1p-11F), gradient(64, a);
    SgdPass pass;
    pass.lr = -static_cast<double>(a);
    sgd_pass<float>(set, pass, parameter.data(), gradient.data(), nullptr, parameter.size());
    for (const float value : parameter) EXPECT_EQ(value, 0.0F) << static_cast<int>(set);
  }
}

template <typename T>
void squares_have_the_same_bits_and_are_right() {
  const auto all = values<T>(5);
  long double exact = 0;
  for (const T value : all) exact += static_cast<long double>(value) * value;
  const double first = squares_of(InstructionSet::baseline, all.data(), kCount).sum;
  EXPECT_NEAR(first, static_cast<double>(exact), 1e-12 * first);
  for (const InstructionSet set : instruction_sets()) {
    const SquaresSum sum = squares_of(set, all.data(), kCount);
    EXPECT_EQ(sum.sum, first);
    EXPECT_TRUE(sum.finite);
  }
}

template <typename T>
void one_value_that_is_not_finite_is_seen_wherever_it_is() {
  using Limits = std::numeric_limits<T>;
  for (const InstructionSet set : instruction_sets()) {
    for (const T bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()})
      for (const std::size_t at : {std::size_t{0}, std::size_t{13}, kCount - 1}) {
        auto all = values<T>(6);
        all[at] = bad;
        EXPECT_FALSE(squares_of(set, all.data(), kCount).finite) << at;
      }
    const std::vector<T> largest(kCount, Limits::max());
    EXPECT_TRUE(squares_of(set, largest.data(), kCount).finite);
    EXPECT_TRUE(squares_of(set, largest.data(), 0).finite);
  }
}

TEST(FlatKernels, AdamHasTheSameBitsOnEveryInstructionSet) {
  adam_has_the_same_bits_on_every_instruction_set<float>();
  adam_has_the_same_bits_on_every_instruction_set<double>();
}

TEST(FlatKernels, SgdHasTheSameBitsOnEveryInstructionSet) {
  sgd_has_the_same_bits_on_every_instruction_set<float>();
  sgd_has_the_same_bits_on_every_instruction_set<double>();
}

TEST(FlatKernels, SquaresHaveTheSameBitsAndAreRight) {
  squares_have_the_same_bits_and_are_right<float>();
  squares_have_the_same_bits_and_are_right<double>();
}

TEST(FlatKernels, OneValueThatIsNotFiniteIsSeenWhereverItIs) {
  one_value_that_is_not_finite_is_seen_wherever_it_is<float>();
  one_value_that_is_not_finite_is_seen_wherever_it_is<double>();
}

}  // namespace
}  // namespace af::train
