// SPDX-License-Identifier: Apache-2.0
#include "collectives/kernels.h"

#include <cstring>
#include <type_traits>

#include "collectives/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// An output may be an input, element for element: no dependence is carried from one turn of a loop
// to the next. Without this the compiler's overlap check sends the in-place case to scalar code.
#define AF_INDEPENDENT _Pragma("GCC ivdep")

#define AF_KERNELS baseline
#define AF_KERNELS_NAME "baseline"
#include "collectives/kernel_loops.h"
#undef AF_KERNELS
#undef AF_KERNELS_NAME

#if defined(__x86_64__) && !defined(__clang__)
#define AF_KERNELS_F16C  // the compiler's own word for it, __F16C__, does not follow the pragma
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#define AF_KERNELS avx2
#define AF_KERNELS_NAME "avx2"
#include "collectives/kernel_loops.h"
#undef AF_KERNELS
#undef AF_KERNELS_NAME
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,prefer-vector-width=512")
#define AF_KERNELS avx512
#define AF_KERNELS_NAME "avx512"
#include "collectives/kernel_loops.h"
#undef AF_KERNELS
#undef AF_KERNELS_NAME
#pragma GCC pop_options
#endif

namespace af {

std::span<const Kernels> usable_kernels() {
#if defined(__x86_64__) && !defined(__clang__)
  static constexpr Kernels kAll[] = {baseline::kKernels, avx2::kKernels, avx512::kKernels};
  // Every processor with AVX2 has F16C.
  static const std::size_t usable =
      !__builtin_cpu_supports("avx2")                                            ? 1
      : __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? 3
                                                                                 : 2;
#else
  static constexpr Kernels kAll[] = {baseline::kKernels};
  static constexpr std::size_t usable = 1;
#endif
  return {kAll, usable};
}

}  // namespace af
