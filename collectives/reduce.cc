// SPDX-License-Identifier: Apache-2.0
// Picks the loops for this processor.
#include "collectives/reduce.h"

#include "collectives/half.h"
#include "collectives/kernels.h"

namespace af {
namespace {

const Kernels& kernels() {
  static const Kernels& best = usable_kernels().back();
  return best;
}

}  // namespace

void reduce(const Reduction& reduction) {
  kernels().reduce(reduction);
}
void widen_f16(const std::uint16_t* in, float* out, std::size_t count) {
  kernels().widen_f16(in, out, count);
}
void round_f16(const float* in, std::uint16_t* out, std::size_t count) {
  kernels().round_f16(in, out, count);
}
void widen_bf16(const std::uint16_t* in, float* out, std::size_t count) {
  kernels().widen_bf16(in, out, count);
}
void round_bf16(const float* in, std::uint16_t* out, std::size_t count) {
  kernels().round_bf16(in, out, count);
}

}  // namespace af
