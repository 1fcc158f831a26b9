// SPDX-License-Identifier: Apache-2.0
// The loops themselves. No include guard: kernels.cc includes this once for each instruction set,
// within a namespace of its own (AF_KERNELS). Plain loops that the compiler vectorises, by blocks
// that stay in the first-level cache, since memory is what limits them. No inline function of the
// standard library is called here: one compiled for AVX-512 must not become the program's only
// copy.

namespace af {
namespace AF_KERNELS {
namespace {

constexpr std::size_t kBlock = 1024;  // elements

// 16-bit floats by blocks. GCC 12 does not vectorise the conversion of f16 by itself.
struct F16 {
  static void widen(const std::uint16_t* in, float* out, std::size_t count) {
    std::size_t i = 0;
#if defined(AF_KERNELS_F16C)
    for (; i + 8 <= count; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
    }
#endif
    for (; i < count; ++i) out[i] = f16_to_f32(in[i]);
  }
  static void round(const float* in, std::uint16_t* out, std::size_t count) {
    std::size_t i = 0;
#if defined(AF_KERNELS_F16C)
    for (; i + 8 <= count; i += 8) {
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
    }
#endif
    for (; i < count; ++i) out[i] = f32_to_f16(in[i]);  // NOLINT(*-core.*): is set
  }
};

struct Bf16 {
  static void widen(const std::uint16_t* in, float* out, std::size_t count) {
    AF_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) out[i] = bf16_to_f32(in[i]);
  }
  static void round(const float* in, std::uint16_t* out, std::size_t count) {
    AF_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = f32_to_bf16(in[i]);  // NOLINT(*-core.*): is set
    }
  }
};

template <ReduceOp kOp, typename T>
inline T combine(T a, T b) {
  if constexpr (kOp == ReduceOp::min) {
    return b < a ? b : a;
  } else if constexpr (kOp == ReduceOp::max) {
    return a < b ? b : a;
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // signed overflow is undefined, wrapping is what we promise
    return T(U(a) + U(b));
  } else {
    return a + b;
  }
}

template <typename T>
inline T scaled(T value, T factor) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    // u8 * u8 would be computed as int, which is wide enough; u32 stays u32.
    return T(U(value) * U(factor));
  } else {
    return value * factor;
  }
}

template <typename T>
inline T factor_of(double scale) {
  if constexpr (std::is_integral_v<T>) {
    return T(static_cast<long long>(scale));
  } else {
    return T(scale);
  }
}

template <typename T>
void copy_scaled(const T* in, T factor, T* out, std::size_t count) {
  if (factor == T(1)) {
    if (in != out) std::memcpy(out, in, count * sizeof(T));
    return;
  }
  AF_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) out[i] = scaled(in[i], factor);
}

template <ReduceOp kOp, typename T>
void combine_into(const T* a, const T* b, T factor, T* out, std::size_t count) {
  if (factor == T(1)) {
    AF_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) out[i] = combine<kOp>(a[i], b[i]);
  } else {
    AF_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) out[i] = combine<kOp>(a[i], scaled(b[i], factor));
  }
}

template <typename T>
void divide(T* values, int divisor, std::size_t count) {
  // Small integers are divided as int: a world of 200 does not fit an i8.
  using Wide = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int, T>;
  const Wide by = Wide(divisor);
  AF_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i)
    values[i] = T(Wide(values[i]) / by);  // NOLINT(*-core.*): is set
}

// One block of a type that is computed in itself.
template <ReduceOp kOp, typename T>
void reduce_block(const Reduction& r, std::size_t begin, std::size_t count) {
  alignas(64) T accumulator[kBlock];
  auto input = [&](int i) { return static_cast<const T*>(r.inputs[i]) + begin; };
  auto factor = [&](int i) { return r.scales ? factor_of<T>(r.scales[i]) : T(1); };
  // With one or two inputs the first output itself can be the accumulator: element i is read before
  // it is written. With more, an output that is a later input would be lost.
  T* sum = r.input_count <= 2 ? static_cast<T*>(r.outputs[0]) + begin : accumulator;
  if (r.input_count >= 2 && factor(0) == T(1)) {
    combine_into<kOp>(input(0), input(1), factor(1), sum, count);
  } else if (r.input_count >= 2) {
    copy_scaled(input(0), factor(0), accumulator, count);
    combine_into<kOp>(accumulator, input(1), factor(1), sum, count);
  } else {
    copy_scaled(input(0), factor(0), sum, count);
  }
  for (int i = 2; i < r.input_count; ++i) {
    combine_into<kOp>(sum, input(i), factor(i), sum, count);
  }
  if (r.divisor != 1) divide(sum, r.divisor, count);
  for (int i = 0; i < r.output_count; ++i) {
    T* out = static_cast<T*>(r.outputs[i]) + begin;
    if (out != sum) std::memcpy(out, sum, count * sizeof(T));
  }
}

// One block of a 16-bit type, computed in f32.
template <ReduceOp kOp, typename Half>
void reduce_half_block(const Reduction& r, std::size_t begin, std::size_t count) {
  alignas(64) float sum[kBlock];
  alignas(64) float wide[kBlock];
  alignas(64) std::uint16_t narrow[kBlock];
  for (int i = 0; i < r.input_count; ++i) {
    const float factor = r.scales ? float(r.scales[i]) : 1.0f;
    const auto* in = static_cast<const std::uint16_t*>(r.inputs[i]) + begin;
    if (i == 0) {
      Half::widen(in, sum, count);
      copy_scaled(sum, factor, sum, count);
    } else {
      Half::widen(in, wide, count);
      combine_into<kOp>(sum, wide, factor, sum, count);
    }
  }
  if (r.divisor != 1) divide(sum, r.divisor, count);
  Half::round(sum, narrow, count);
  for (int i = 0; i < r.output_count; ++i) {
    std::memcpy(static_cast<std::uint16_t*>(r.outputs[i]) + begin, narrow, count * 2);
  }
}

template <ReduceOp kOp>
void reduce_with(const Reduction& r) {
  using Block = void (*)(const Reduction&, std::size_t, std::size_t);
  static constexpr Block kBlocks[] = {
      reduce_block<kOp, std::int8_t>,  reduce_block<kOp, std::uint8_t>,
      reduce_block<kOp, std::int32_t>, reduce_block<kOp, std::uint32_t>,
      reduce_block<kOp, std::int64_t>, reduce_block<kOp, std::uint64_t>,
      reduce_half_block<kOp, F16>,     reduce_half_block<kOp, Bf16>,
      reduce_block<kOp, float>,        reduce_block<kOp, double>,
  };
  const Block block = kBlocks[int(r.type)];
  for (std::size_t begin = 0; begin < r.count; begin += kBlock) {
    const std::size_t left = r.count - begin;
    block(r, begin, left < kBlock ? left : kBlock);
  }
}

void reduce(const Reduction& reduction) {
  switch (reduction.op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return reduce_with<ReduceOp::sum>(reduction);
    case ReduceOp::min:
      return reduce_with<ReduceOp::min>(reduction);
    case ReduceOp::max:
      return reduce_with<ReduceOp::max>(reduction);
  }
}

constexpr Kernels kKernels = {AF_KERNELS_NAME, reduce,      F16::widen,
                              F16::round,      Bf16::widen, Bf16::round};

}  // namespace
}  // namespace AF_KERNELS
}  // namespace af
