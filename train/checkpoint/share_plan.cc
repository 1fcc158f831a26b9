// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/share_plan.h"

#include <algorithm>

namespace af::train {

ByteRange share_of(uint64_t bytes, int rank, int world_size) {
  const auto world = static_cast<uint64_t>(world_size);
  const uint64_t units = (bytes + kShareUnit - 1) / kShareUnit;
  const uint64_t each = (units + world - 1) / world * kShareUnit;
  const auto before = static_cast<uint64_t>(rank);
  return {std::min(bytes, before * each), std::min(bytes, (before + 1) * each)};
}

std::vector<SharePiece> pieces_of(const ZipLayout& layout, const ByteRange& range) {
  std::vector<SharePiece> pieces;
  for (std::size_t i = 0; i < layout.entries().size(); ++i) {
    const ZipLayout::Entry& entry = layout.entries()[i];
    const uint64_t begin = std::max(entry.data, range.begin);
    const uint64_t end = std::min(entry.data + entry.bytes, range.end);
    if (begin < end) pieces.push_back({i, begin - entry.data, end - begin, begin - range.begin});
  }
  return pieces;
}

}  // namespace af::train
