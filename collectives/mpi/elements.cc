// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi/elements.h"

#include <cstdint>

#include "collectives/half.h"
#include "collectives/reduce.h"

namespace af {
namespace {

// One input, one output: what is left of a reduction is the scaling and the division.
void scale(const void* in, void* out, std::size_t count, DataType type, double by, int divisor) {
  const Reduction pass{.type = type,
                       .op = ReduceOp::sum,
                       .inputs = &in,
                       .scales = &by,
                       .input_count = 1,
                       .outputs = &out,
                       .output_count = 1,
                       .count = count,
                       .divisor = divisor};
  reduce(pass);
}

}  // namespace

void to_carrier(const void* in, void* out, std::size_t count, DataType type, double by) {
  const auto* half = static_cast<const std::uint16_t*>(in);
  auto* wide = static_cast<float*>(out);
  if (type == DataType::f16) {
    widen_f16(half, wide, count);
  } else if (type == DataType::bf16) {
    widen_bf16(half, wide, count);
  } else {
    return scale(in, out, count, type, by, 1);
  }
  if (by != 1.0) scale(wide, wide, count, DataType::f32, by, 1);
}

void from_carrier(void* carrier, void* out, std::size_t count, DataType type, int divisor) {
  const DataType wide = carrier_of(type);
  if (wide == type) {
    if (carrier != out || divisor != 1) scale(carrier, out, count, type, 1.0, divisor);
    return;
  }
  if (divisor != 1) scale(carrier, carrier, count, wide, 1.0, divisor);
  const auto* values = static_cast<const float*>(carrier);
  auto* half = static_cast<std::uint16_t*>(out);
  type == DataType::f16 ? round_f16(values, half, count) : round_bf16(values, half, count);
}

}  // namespace af
