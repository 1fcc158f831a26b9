// SPDX-License-Identifier: Apache-2.0
// What a collective should give, computed the simplest way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "af/communicator.h"
#include "collectives/half.h"

namespace af::test {

using Bytes = std::vector<unsigned char>;

inline constexpr DataType kTypes[] = {DataType::i8,  DataType::u8,  DataType::i32, DataType::u32,
                                      DataType::i64, DataType::u64, DataType::f16, DataType::bf16,
                                      DataType::f32, DataType::f64};
inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max};

inline bool is_unsigned(DataType type) {
  return type == DataType::u8 || type == DataType::u32 || type == DataType::u64;
}
inline bool is_integer(DataType type) {
  return int(type) <= int(DataType::u64);
}

// Small whole numbers: every sum of a test is exact in every type, so there is one right answer.
inline double value(DataType type, int rank, std::size_t index) {
  const int v = int((index * 7 + std::size_t(rank) * 13) % 11);
  return is_unsigned(type) ? v : v - 5;
}

inline void put(DataType type, void* to, std::size_t index, double v) {
  auto store = [&](auto typed) {
    std::memcpy(static_cast<char*>(to) + index * sizeof(typed), &typed, sizeof(typed));
  };
  switch (type) {
    case DataType::i8:
      return store(std::int8_t(v));
    case DataType::u8:
      return store(std::uint8_t(v));
    case DataType::i32:
      return store(std::int32_t(v));
    case DataType::u32:
      return store(std::uint32_t(v));
    case DataType::i64:
      return store(std::int64_t(v));
    case DataType::u64:
      return store(std::uint64_t(v));
    case DataType::f16:
      return store(f32_to_f16(float(v)));
    case DataType::bf16:
      return store(f32_to_bf16(float(v)));
    case DataType::f32:
      return store(float(v));
    case DataType::f64:
      return store(v);
  }
}

inline Bytes input_of(DataType type, int rank, std::size_t count) {
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) put(type, bytes.data(), i, value(type, rank, i));
  return bytes;
}

// The reduction over the ranks of a world of their inputs, elements [begin, begin + count).
inline Bytes reduced(DataType type, ReduceOp op, int world, std::size_t begin, std::size_t count,
                     const std::vector<double>& scales = {}) {
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    double total = 0;
    for (int r = 0; r < world; ++r) {
      const double v = value(type, r, begin + i) * (scales.empty() ? 1 : scales[std::size_t(r)]);
      if (r == 0)
        total = v;
      else if (op == ReduceOp::min)
        total = v < total ? v : total;
      else if (op == ReduceOp::max)
        total = v > total ? v : total;
      else
        total += v;
    }
    if (op == ReduceOp::avg) {
      if (is_integer(type))
        total = double(std::int64_t(total) / world);
      else if (type == DataType::f64)
        total /= world;
      else
        total = float(total) / float(world);
    }
    put(type, bytes.data(), i, total);
  }
  return bytes;
}

}  // namespace af::test
