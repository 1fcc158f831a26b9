// SPDX-License-Identifier: Apache-2.0
// f16 and bf16 to f32 and back, by blocks; rounding to nearest, ties to even.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13;  // infinity, NaN
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
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to 2^16 or more: infinity
  if (magnitude < 0x38800000) {
    // Subnormal in f16: adding 0.5 lets the f32 adder round at bit 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | std::uint16_t(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000);
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | std::uint16_t((rounded - ((127 - 15) << 23)) >> 13);
}

inline void widen_bf16(const std::uint16_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = bf16_to_f32(in[i]);
}

inline void round_bf16(const float* in, std::uint16_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = f32_to_bf16(in[i]);  // NOLINT(*-core.*): is set
}

#if defined(__x86_64__)
// GCC 12 does not vectorise the conversion by itself; every x86 server since 2012 has F16C.
__attribute__((target("avx,f16c"))) inline void widen_f16_f16c(const std::uint16_t* in, float* out,
                                                               std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  for (; i < count; ++i) out[i] = f16_to_f32(in[i]);
}

__attribute__((target("avx,f16c"))) inline void round_f16_f16c(const float* in, std::uint16_t* out,
                                                               std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  for (; i < count; ++i) out[i] = f32_to_f16(in[i]);  // NOLINT(*-core.*): is set
}

inline bool have_f16c() {
  // clang 14 cannot ask for f16c by name; whatever has AVX2 has it.
  static const bool have = __builtin_cpu_supports("avx2");
  return have;
}
#endif

inline void widen_f16(const std::uint16_t* in, float* out, std::size_t count) {
#if defined(__x86_64__)
  if (have_f16c()) return widen_f16_f16c(in, out, count);
#endif
  for (std::size_t i = 0; i < count; ++i) out[i] = f16_to_f32(in[i]);
}

inline void round_f16(const float* in, std::uint16_t* out, std::size_t count) {
#if defined(__x86_64__)
  if (have_f16c()) return round_f16_f16c(in, out, count);
#endif
  for (std::size_t i = 0; i < count; ++i) out[i] = f32_to_f16(in[i]);  // NOLINT(*-core.*): is set
}

}  // namespace af
