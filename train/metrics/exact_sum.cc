// SPDX-License-Identifier: Apache-2.0
#include "af/train/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace af::train {
namespace {

constexpr int kLowest = -1074;                   // the exponent of the smallest double
constexpr int64_t kMostAdds = int64_t{1} << 30;  // of less than 2^32 each, without an overflow
constexpr uint64_t kDigitMask = 0xffffffffU;
__extension__ typedef __int128 Wide;

}  // namespace

void ExactSum::add(double x) {
  if (x == 0) return;
  if (!std::isfinite(x)) {
    ++special_[std::isnan(x) ? 0 : x > 0 ? 1 : 2];
    return;
  }
  // x = mantissa * 2^(position + kLowest), the mantissa of 53 bits.
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (biased != 0) mantissa |= uint64_t{1} << 52;
  const int position = biased == 0 ? 0 : biased - 1;
  const int shift = position % 32;
  auto* digit = &digits_[static_cast<std::size_t>(position / 32)];
  const uint64_t low = mantissa << shift;
  const uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
  const int64_t sign = (bits >> 63) != 0 ? -1 : 1;
  digit[0] += sign * static_cast<int64_t>(low & kDigitMask);
  digit[1] += sign * static_cast<int64_t>(low >> 32);
  digit[2] += sign * static_cast<int64_t>(high);
  if (++adds_ >= kMostAdds) carry();
}

void ExactSum::add_product(double a, double b) {
  const double product = a * b;
  add(product);
  if (std::isfinite(product)) add(std::fma(a, b, -product));
}

void ExactSum::subtract(const ExactSum& other) {
  carry();
  const auto theirs = other.carried();
  for (std::size_t i = 0; i < theirs.size(); ++i) digits_[i] -= theirs[i];
  adds_ = 1;
  special_[0] += other.special_[0];
  special_[1] += other.special_[2];
  special_[2] += other.special_[1];
}

void ExactSum::multiply(int64_t by) {
  carry();
  Wide carried_over = 0;
  for (std::size_t i = 0; i + 1 < digits_.size(); ++i) {
    const Wide product = Wide{digits_[i]} * by + carried_over;
    digits_[i] = static_cast<int64_t>(static_cast<uint64_t>(product) & kDigitMask);
    carried_over = product >> 32;
  }
  auto& last = digits_[kDigits - 1];
  last = static_cast<int64_t>(Wide{last} * by + carried_over);
}

// The same number with every digit in [0, 2^32), but for the last, which has the sign.
std::vector<int64_t> ExactSum::carried() const {
  std::vector<int64_t> digits(digits_.begin(), digits_.end());
  for (std::size_t i = 0; i + 1 < digits.size(); ++i) {
    const int64_t carry = digits[i] >> 32;
    digits[i + 1] += carry;
    digits[i] -= carry * (int64_t{1} << 32);
  }
  return digits;
}

void ExactSum::carry() {
  const auto digits = carried();
  std::copy(digits.begin(), digits.end(), digits_.begin());
  adds_ = 0;
}

std::size_t ExactSum::parts_count() {
  return kDigits + 3;
}

std::vector<double> ExactSum::parts() const {
  const auto digits = carried();
  std::vector<double> parts(digits.begin(), digits.end());
  parts.insert(parts.end(), special_.begin(), special_.end());
  return parts;
}

void ExactSum::set_parts(const std::vector<double>& parts) {
  if (parts.size() != parts_count())
    throw std::invalid_argument("ExactSum: " + std::to_string(parts.size()) + " parts, not " +
                                std::to_string(parts_count()));
  for (std::size_t i = 0; i < kDigits; ++i) digits_[i] = static_cast<int64_t>(parts[i]);
  std::copy(parts.end() - 3, parts.end(), special_.begin());
  carry();
}

namespace {

// The magnitude in digits below 2^32, rounded to the nearest double, ties to even.
double rounded(const std::vector<int64_t>& digits) {
  std::size_t top = digits.size();
  while (top > 0 && digits[top - 1] == 0) --top;
  if (top == 0) return 0;
  // 96 bits from the highest digit on; what is below counts as one bit of its own, so that the one
  // rounding (by the conversion, to nearest even) knows on which side of a tie it is.
  const auto digit = [&](std::size_t below) {
    return top > below ? static_cast<uint64_t>(digits[top - 1 - below]) : 0;
  };
  Wide wide = (Wide{digit(0)} << 64) | (Wide{digit(1)} << 32) | digit(2);
  bool rest = false;
  for (std::size_t below = 3; below < top; ++below) rest = rest || digit(below) != 0;
  // To 63 bits with a sticky one.
  int exponent = 32 * (static_cast<int>(top) - 3) + kLowest;
  while ((wide >> 62) != 0) {
    rest = rest || (wide & 1) != 0;
    wide >>= 1;
    ++exponent;
  }
  auto narrow = static_cast<int64_t>(wide);
  if (rest) narrow |= 1;
  // A result below the normal doubles has no bits to lose: all digits' bits are multiples of
  // 2^-1074.
  return std::ldexp(static_cast<double>(narrow), exponent);
}

double signed_value(std::vector<int64_t> digits) {
  const bool negative = digits.back() < 0;
  if (negative) {  // its magnitude, digit by digit with a borrow
    int64_t borrow = 0;
    for (std::size_t i = 0; i + 1 < digits.size(); ++i) {
      int64_t value = -digits[i] - borrow;
      borrow = value < 0 ? 1 : 0;
      digits[i] = value + borrow * (int64_t{1} << 32);
    }
    digits.back() = -digits.back() - borrow;
  }
  return negative ? -rounded(digits) : rounded(digits);
}

}  // namespace

double ExactSum::value() const {
  const bool up = special_[1] > 0;
  const bool down = special_[2] > 0;
  if (special_[0] > 0 || (up && down)) return std::numeric_limits<double>::quiet_NaN();
  if (up || down) return std::numeric_limits<double>::infinity() * (up ? 1 : -1);
  return signed_value(carried());
}

std::array<double, 3> ExactSum::expansion() const {
  std::array<double, 3> values{};
  ExactSum left = *this;
  for (double& value : values) {
    value = left.value();
    if (!std::isfinite(value)) break;
    left.add(-value);
  }
  return values;
}

}  // namespace af::train
