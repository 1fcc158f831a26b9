// SPDX-License-Identifier: Apache-2.0
// Rows from anywhere in memory, one after the other.
#pragma once

#include <cstddef>
#include <vector>

#include "train/data/number_format.h"

namespace af::train {

struct RowGather {
  std::size_t from_bytes = 0;  // of a row
  std::size_t to_bytes = 0;
  std::size_t numbers = 0;           // of a row
  ConvertNumbers convert = nullptr;  // nullptr: the bytes as they are
};

void gather(const std::vector<const std::byte*>& rows, const RowGather& how, std::byte* to);

}  // namespace af::train
