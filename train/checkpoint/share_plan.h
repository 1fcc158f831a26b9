// SPDX-License-Identifier: Apache-2.0
// Which bytes of a planned archive each rank writes, when the ranks have the same state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/checkpoint/zip_layout.h"

namespace af::train {

// Of the file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

// Borders between shares are multiples of it: no page of the file, and no stripe of a parallel file
// system, is written by two nodes. What is smaller is written by rank 0 alone.
inline constexpr uint64_t kShareUnit = uint64_t{1} << 20;

// Of `bytes` bytes; those of all ranks follow each other and cover it. Empty ones come last.
ByteRange share_of(uint64_t bytes, int rank, int world_size);

// A part of an entry that lies in a range.
struct SharePiece {
  std::size_t entry = 0;
  uint64_t first = 0;  // byte of the entry
  uint64_t bytes = 0;
  uint64_t at = 0;  // from the beginning of the range
};
// In the order of the file, without headers.
std::vector<SharePiece> pieces_of(const ZipLayout& layout, const ByteRange& range);

}  // namespace af::train
