// SPDX-License-Identifier: Apache-2.0
// How elements are dealt to several ranks: contiguous shares that begin on cache lines.
#pragma once

#include <algorithm>
#include <cstddef>

namespace af::local {

struct Stripe {
  std::size_t begin = 0;  // elements
  std::size_t count = 0;
};

// Share `index` of `shares`; the shares cover [0, total) in order, and some may be empty.
inline Stripe stripe(std::size_t total, int index, int shares, std::size_t element_bytes) {
  const std::size_t line = std::max<std::size_t>(1, 64 / element_bytes);
  auto border = [&](int i) {
    if (i >= shares) return total;
    const std::size_t even = total / std::size_t(shares) * std::size_t(i) +
                             total % std::size_t(shares) * std::size_t(i) / std::size_t(shares);
    return std::min(total, (even + line - 1) / line * line);
  };
  return {border(index), border(index + 1) - border(index)};
}

}  // namespace af::local
