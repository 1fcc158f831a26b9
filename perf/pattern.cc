// SPDX-License-Identifier: Apache-2.0
#include "perf/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "collectives/half.h"

namespace af::perf {
namespace {

// 0 to 4: even f16 holds the sum of 500 ranks exactly; i8 that of 31 (it wraps beyond, as ours do).
int value_at(int rank, std::size_t index) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 3 + index * 7 + index / 5) % 5);
}

struct F16 {
  std::uint16_t bits;
  static F16 of(double value) { return {f32_to_f16(static_cast<float>(value))}; }
  double number() const { return f16_to_f32(bits); }
  static constexpr double kEpsilon = 1.0 / 1024;
};

struct Bf16 {
  std::uint16_t bits;
  static Bf16 of(double value) { return {f32_to_bf16(static_cast<float>(value))}; }
  double number() const { return bf16_to_f32(bits); }
  static constexpr double kEpsilon = 1.0 / 128;
};

template <typename T>
struct Plain {
  T value;
  static Plain of(double number) {
    return {static_cast<T>(static_cast<std::int64_t>(number))};  // integers wrap
  }
  double number() const { return static_cast<double>(value); }
  static constexpr double kEpsilon = 0;
};
template <typename T>
struct Real {
  T value;
  static Real of(double number) { return {static_cast<T>(number)}; }
  double number() const { return static_cast<double>(value); }
  static constexpr double kEpsilon = std::numeric_limits<T>::epsilon();
};

// Calls `use` with the element type of `type` as its template argument.
template <typename Use>
auto with_type(DataType type, Use use) {
  switch (type) {
    case DataType::i8:
      return use.template operator()<Plain<std::int8_t>>();
    case DataType::u8:
      return use.template operator()<Plain<std::uint8_t>>();
    case DataType::i32:
      return use.template operator()<Plain<std::int32_t>>();
    case DataType::u32:
      return use.template operator()<Plain<std::uint32_t>>();
    case DataType::i64:
      return use.template operator()<Plain<std::int64_t>>();
    case DataType::u64:
      return use.template operator()<Plain<std::uint64_t>>();
    case DataType::f16:
      return use.template operator()<F16>();
    case DataType::bf16:
      return use.template operator()<Bf16>();
    case DataType::f32:
      return use.template operator()<Real<float>>();
    case DataType::f64:
      break;
  }
  return use.template operator()<Real<double>>();
}

template <typename T>
double reduced(ReduceOp op, int world_size, std::size_t index) {
  double result = value_at(0, index);
  for (int rank = 1; rank < world_size; ++rank) {
    const double value = value_at(rank, index);
    if (op == ReduceOp::min) {
      result = std::min(result, value);
    } else if (op == ReduceOp::max) {
      result = std::max(result, value);
    } else {
      result += value;
    }
  }
  if (op == ReduceOp::avg && T::kEpsilon == 0) {
    return std::trunc(T::of(result).number() / world_size);
  }
  return op == ReduceOp::avg ? result / world_size : result;
}

}  // namespace

void fill(void* out, std::size_t count, DataType type, int rank, std::size_t offset) {
  with_type(type, [&]<typename T>() {
    T* values = static_cast<T*>(out);
    for (std::size_t i = 0; i < count; ++i) values[i] = T::of(value_at(rank, offset + i));
  });
}

std::size_t count_wrong_reduced(const void* values, std::size_t count, DataType type, ReduceOp op,
                                int world_size, std::size_t offset) {
  return with_type(type, [&]<typename T>() {
    const T* got = static_cast<const T*>(values);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double want = reduced<T>(op, world_size, offset + i);
      // Backends may multiply by 1/N instead of dividing by N: two roundings more.
      const double slack = op == ReduceOp::avg ? 2 * T::kEpsilon * want : 0;
      if (!(std::abs(got[i].number() - T::of(want).number()) <= slack)) ++wrong;
    }
    return wrong;
  });
}

std::size_t count_wrong_copied(const void* values, std::size_t count, DataType type, int rank,
                               std::size_t offset) {
  return with_type(type, [&]<typename T>() {
    const T* got = static_cast<const T*>(values);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (got[i].number() != value_at(rank, offset + i)) ++wrong;
    }
    return wrong;
  });
}

}  // namespace af::perf
