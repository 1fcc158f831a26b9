// SPDX-License-Identifier: Apache-2.0
#include "train/data/number_format.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace af::train {
namespace {

template <std::size_t size>
using Bits = std::conditional_t<
    size == 1, uint8_t,
    std::conditional_t<size == 2, uint16_t, std::conditional_t<size == 4, uint32_t, uint64_t>>>;

template <class From, bool swapped>
From load(const std::byte* at) {
  Bits<sizeof(From)> bits;
  std::memcpy(&bits, at, sizeof bits);
  if constexpr (swapped && sizeof bits == 2) bits = __builtin_bswap16(bits);
  if constexpr (swapped && sizeof bits == 4) bits = __builtin_bswap32(bits);
  if constexpr (swapped && sizeof bits == 8) bits = __builtin_bswap64(bits);
  From value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

template <class To, class From>
To cast(From value) {
  if constexpr (std::is_same_v<From, uint64_t> && std::is_same_v<To, int64_t>)
    return static_cast<int64_t>(std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));
  else
    return static_cast<To>(value);
}

template <class From, class To, bool swapped>
void convert(const std::byte* from, std::ptrdiff_t from_stride, std::byte* to,
             std::ptrdiff_t to_stride, std::size_t count) {
  const bool dense = from_stride == sizeof(From) && to_stride == sizeof(To);
  if constexpr (std::is_same_v<From, To> && !swapped) {
    if (dense) {
      std::memcpy(to, from, count * sizeof(From));
      return;
    }
  }
  if (dense) {  // with the strides known, a loop for the vector units
    for (std::size_t i = 0; i < count; ++i) {
      const To value = cast<To>(load<From, swapped>(from + i * sizeof(From)));
      std::memcpy(to + i * sizeof(To), &value, sizeof value);
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i, from += from_stride, to += to_stride) {
    const To value = cast<To>(load<From, swapped>(from));
    std::memcpy(to, &value, sizeof value);
  }
}

// `Natural`: what tensor_type_of() says.
template <class From, class Natural>
ConvertNumbers converter_of(NumberFormat from, at::ScalarType to) {
  const auto pick = [&](ConvertNumbers plain, ConvertNumbers swapped) {
    return from.swapped && sizeof(From) > 1 ? swapped : plain;
  };
  if (to == tensor_type_of(from.kind))
    return pick(convert<From, Natural, false>, convert<From, Natural, true>);
  if (to == at::kFloat) return pick(convert<From, float, false>, convert<From, float, true>);
  if (to == at::kDouble) return pick(convert<From, double, false>, convert<From, double, true>);
  if constexpr (std::is_integral_v<Natural>)
    if (to == at::kLong) return pick(convert<From, int64_t, false>, convert<From, int64_t, true>);
  return nullptr;
}

}  // namespace

std::size_t size_of(NumberKind kind) {
  switch (kind) {
    case NumberKind::i8:
    case NumberKind::u8:
    case NumberKind::boolean:
      return 1;
    case NumberKind::i16:
    case NumberKind::u16:
    case NumberKind::f16:
      return 2;
    case NumberKind::i32:
    case NumberKind::u32:
    case NumberKind::f32:
      return 4;
    default:
      return 8;
  }
}

at::ScalarType tensor_type_of(NumberKind kind) {
  switch (kind) {
    case NumberKind::i8:
      return at::kChar;
    case NumberKind::u8:
      return at::kByte;
    case NumberKind::i16:
      return at::kShort;
    case NumberKind::u16:
    case NumberKind::i32:
      return at::kInt;
    case NumberKind::u32:
    case NumberKind::i64:
    case NumberKind::u64:
      return at::kLong;
    case NumberKind::f16:
    case NumberKind::f32:
      return at::kFloat;
    case NumberKind::f64:
      return at::kDouble;
    case NumberKind::boolean:
      return at::kBool;
  }
  return at::ScalarType::Undefined;
}

std::optional<NumberFormat> format_of(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return NumberFormat{NumberKind::i8};
    case at::kByte:
      return NumberFormat{NumberKind::u8};
    case at::kShort:
      return NumberFormat{NumberKind::i16};
    case at::kInt:
      return NumberFormat{NumberKind::i32};
    case at::kLong:
      return NumberFormat{NumberKind::i64};
    case at::kHalf:
      return NumberFormat{NumberKind::f16};
    case at::kFloat:
      return NumberFormat{NumberKind::f32};
    case at::kDouble:
      return NumberFormat{NumberKind::f64};
    case at::kBool:
      return NumberFormat{NumberKind::boolean};
    default:
      return std::nullopt;
  }
}

ConvertNumbers converter(NumberFormat from, at::ScalarType to) {
  switch (from.kind) {
    case NumberKind::i8:
      return converter_of<int8_t, int8_t>(from, to);
    case NumberKind::u8:
      return converter_of<uint8_t, uint8_t>(from, to);
    case NumberKind::i16:
      return converter_of<int16_t, int16_t>(from, to);
    case NumberKind::u16:
      return converter_of<uint16_t, int32_t>(from, to);
    case NumberKind::i32:
      return converter_of<int32_t, int32_t>(from, to);
    case NumberKind::u32:
      return converter_of<uint32_t, int64_t>(from, to);
    case NumberKind::i64:
      return converter_of<int64_t, int64_t>(from, to);
    case NumberKind::u64:
      return converter_of<uint64_t, int64_t>(from, to);
    case NumberKind::f16:
      return converter_of<c10::Half, float>(from, to);
    case NumberKind::f32:
      return converter_of<float, float>(from, to);
    case NumberKind::f64:
      return converter_of<double, double>(from, to);
    case NumberKind::boolean:
      // As a byte: a file may hold others than 0 and 1, which are no values of a bool in C++.
      return converter_of<uint8_t, uint8_t>(from, to);
  }
  return nullptr;
}

}  // namespace af::train
