// SPDX-License-Identifier: Apache-2.0
// The loops over elements, compiled once for each instruction set worth having; all give the same
// bits.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/reduce.h"

namespace af {

struct Kernels {
  const char* name;  // "baseline", "avx2", "avx512"
  void (*reduce)(const Reduction&);
  void (*widen_f16)(const std::uint16_t* in, float* out, std::size_t count);
  void (*round_f16)(const float* in, std::uint16_t* out, std::size_t count);
  void (*widen_bf16)(const std::uint16_t* in, float* out, std::size_t count);
  void (*round_bf16)(const float* in, std::uint16_t* out, std::size_t count);
};

// Those that this processor can run, the fastest last.
std::span<const Kernels> usable_kernels();

}  // namespace af
