// SPDX-License-Identifier: Apache-2.0
// f16 and bf16 to f32 and back; rounding to nearest, ties to even. A NaN stays one, made quiet,
// with as much of its payload as fits: what processors with F16C do, so that all give the same
// bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace af {

inline float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t(value) << 16);
}

inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // Rounding up the mantissa of a NaN could make it an infinity: keep it quiet instead.
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return std::uint16_t(nan ? (bits >> 16) | 0x40 : rounded);
}

inline float f16_to_f32(std::uint16_t value) {
  const std::uint32_t sign = std::uint32_t(value & 0x8000) << 16;
  const std::uint32_t magnitude = value & 0x7fff;
  std::uint32_t bits;
  if (magnitude >= 0x7c00) {
    const std::uint32_t quiet = magnitude > 0x7c00 ? 0x400000 : 0;
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13 | quiet;  // infinity, NaN
  } else if (magnitude >= 0x400) {
    bits = (magnitude << 13) + ((127 - 15) << 23);
  } else {
    // Subnormal: magnitude * 2^-24 is exact in f32.
    bits = std::bit_cast<std::uint32_t>(float(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | bits);
}

inline std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = std::uint16_t(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN
    return sign | 0x7e00 | std::uint16_t(magnitude >> 13 & 0x3ff);
  }
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to 2^16 or more: infinity
  if (magnitude < 0x38800000) {
    // Subnormal in f16: adding 0.5 lets the f32 adder round at bit 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | std::uint16_t(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000);
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | std::uint16_t((rounded - ((127 - 15) << 23)) >> 13);
}

// By blocks, vectorised for this processor.
void widen_f16(const std::uint16_t* in, float* out, std::size_t count);
void round_f16(const float* in, std::uint16_t* out, std::size_t count);
void widen_bf16(const std::uint16_t* in, float* out, std::size_t count);
void round_bf16(const float* in, std::uint16_t* out, std::size_t count);

}  // namespace af
