// SPDX-License-Identifier: Apache-2.0
// Numbers as files hold them, to numbers as tensors hold them. Pure; no HDF5.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <optional>

namespace af::train {

enum class NumberKind { i8, u8, i16, u16, i32, u32, i64, u64, f16, f32, f64, boolean };

struct NumberFormat {
  NumberKind kind = NumberKind::f32;
  bool swapped = false;  // of the other byte order than this machine
  bool operator==(const NumberFormat&) const = default;
};

std::size_t size_of(NumberKind kind);

// The tensor type with the same values. uint16 and uint32, which torch does not have, come as int32
// and int64; uint64 as int64, where what is too large becomes the largest (as HDF5 does it); half
// as float.
at::ScalarType tensor_type_of(NumberKind kind);
// The format of a tensor's own numbers; none for types that are not of the above.
std::optional<NumberFormat> format_of(at::ScalarType type);

// Reads `count` numbers, `from_stride` bytes apart, and writes them `to_stride` bytes apart. The
// two memories do not overlap and need no alignment.
using ConvertNumbers = void (*)(const std::byte* from, std::ptrdiff_t from_stride, std::byte* to,
                                std::ptrdiff_t to_stride, std::size_t count);

// To the type of tensor_type_of(), kFloat, kDouble or kLong; nullptr for others, and for numbers
// with a fraction to kLong.
ConvertNumbers converter(NumberFormat from, at::ScalarType to);

}  // namespace af::train
