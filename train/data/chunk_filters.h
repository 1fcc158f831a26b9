// SPDX-License-Identifier: Apache-2.0
// The filters of HDF5's chunks that are undone here and not by HDF5, which lets one thread in at a
// time: deflate (gzip), shuffle and fletcher32. Pure; threads may call it side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace af::train {

enum class ChunkFilter { deflate, shuffle, fletcher32 };

struct ChunkPipeline {
  std::vector<ChunkFilter> filters;  // as they were applied at writing
  std::size_t element_bytes = 1;     // of shuffle
  std::size_t chunk_bytes = 0;       // of a whole chunk without filters
};

// The stored bytes of a chunk to its plain ones: `out` has room for chunk_bytes. Bit i of `skipped`
// says that filter i was not applied to this chunk. `stored` is written over. Throws af::Error
// saying what is wrong with the bytes, without where they are.
void undo_filters(const ChunkPipeline& pipeline, uint32_t skipped, std::vector<std::byte>& stored,
                  std::byte* out);

// Bytes that were sorted by their place in the element, back in their order. What does not make a
// whole element stays at the end, as HDF5 has it.
void unshuffle(const std::byte* shuffled, std::size_t bytes, std::size_t element_bytes,
               std::byte* out);

// Fletcher's checksum over words of two bytes, the first one higher, as HDF5 computes it.
uint32_t fletcher32(const std::byte* data, std::size_t bytes);

}  // namespace af::train
