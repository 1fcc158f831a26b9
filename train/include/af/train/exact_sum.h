// SPDX-License-Identifier: Apache-2.0
// A sum of doubles without any rounding: the same to the last bit in every order, and so at every
// number of ranks. For metrics over a data set, where the last digits otherwise depend on which
// rank had which rows.
//
//   af::train::ExactSum sum;
//   for (double x : mine) sum.add(x);
//   sum.set_parts(af::train::sum_over_ranks(world, sum.parts()));
//   sum.value();   // the double nearest to the true sum
//
// A fixed-point number over the whole range of doubles, in digits of 32 bits, as in Neal, "Fast
// exact summation using small and large superaccumulators", 2015 (arXiv:1505.05571): an add()
// touches three of them. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "af/export.h"

namespace af::train {

class AF_PUBLIC ExactSum {
 public:
  void add(double x);
  // a*b without the rounding of the product, unless it is below 1e-270 or above 1e300.
  void add_product(double a, double b);
  void subtract(const ExactSum& other);
  // By a count of less than 2^62.
  void multiply(int64_t by);

  // What, added element by element over at most 2^20 ranks, gives the parts of the sum of all.
  std::vector<double> parts() const;
  // Throws std::invalid_argument for another number of parts than parts() gives.
  void set_parts(const std::vector<double>& parts);
  static std::size_t parts_count();

  // Rounded to nearest. NaN if a NaN was added or both infinities; an infinity that was added.
  double value() const;
  // Doubles, the first the nearest to the sum and each further one to what the ones before leave:
  // 159 bits of it, for what is left when two large sums are subtracted.
  std::array<double, 3> expansion() const;

 private:
  static constexpr int kDigits = 70;  // 2^-1074 to 2^1024, and room for 2^95 of the largest
  std::vector<int64_t> carried() const;
  void carry();

  std::array<int64_t, kDigits> digits_{};  // of weight 2^(32 i - 1074)
  int64_t adds_ = 0;                       // since digits were last below 2^32
  std::array<double, 3> special_{};        // how many NaN, +inf, -inf
};

}  // namespace af::train
