// SPDX-License-Identifier: Apache-2.0
// What MPI cannot do itself, done before and after it: pre-scale, average, f16 and bf16.
//
// MPI reduces the "carrier" type: f32 for f16 and bf16 (so their sums are rounded once), else the
// type itself. avg is a sum whose result is divided.
#pragma once

#include <cstddef>

#include "af/communicator.h"

namespace af {

inline DataType carrier_of(DataType type) {
  return type == DataType::f16 || type == DataType::bf16 ? DataType::f32 : type;
}

// out (count elements of the carrier) = in (count elements of `type`) * scale.
void to_carrier(const void* in, void* out, std::size_t count, DataType type, double scale);

// out (count elements of `type`) = carrier / divisor. `carrier` is overwritten where it is f32 for
// a 16-bit type and divisor != 1. carrier == out is allowed where both have one type.
void from_carrier(void* carrier, void* out, std::size_t count, DataType type, int divisor);

}  // namespace af
