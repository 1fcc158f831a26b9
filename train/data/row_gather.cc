// SPDX-License-Identifier: Apache-2.0
#include "train/data/row_gather.h"

#include <algorithm>
#include <cstring>

namespace af::train {
namespace {

// The processor cannot foresee where the next row lies: it is told a good many rows before. Into
// the second cache (locality 2): the first has room for too few reads that are on their way.
// Measured on rows of 256 bytes in 50 MB, without: 60 ns a row, into the first cache 8 rows ahead:
// 37, this: 27. Of a long row the beginning is enough, the rest it does foresee.
constexpr std::size_t kAhead = 48;
constexpr std::size_t kLine = 64;
constexpr std::size_t kMostLines = 8;

void announce(const std::byte* row, std::size_t bytes) {
  for (std::size_t at = 0; at < std::min(bytes, kMostLines * kLine); at += kLine)
    __builtin_prefetch(row + at, 0, 2);
}

}  // namespace

void gather(const std::vector<const std::byte*>& rows, const RowGather& how, std::byte* to) {
  const std::size_t count = rows.size();
  for (std::size_t i = 0; i < std::min(kAhead, count); ++i) announce(rows[i], how.from_bytes);
  const auto from_step =
      static_cast<std::ptrdiff_t>(how.numbers ? how.from_bytes / how.numbers : 0);
  const auto to_step = static_cast<std::ptrdiff_t>(how.numbers ? how.to_bytes / how.numbers : 0);
  for (std::size_t i = 0; i < count; ++i, to += how.to_bytes) {
    if (i + kAhead < count) announce(rows[i + kAhead], how.from_bytes);
    if (how.convert == nullptr)
      std::memcpy(to, rows[i], how.from_bytes);
    else
      how.convert(rows[i], from_step, to, to_step, how.numbers);
  }
}

}  // namespace af::train
