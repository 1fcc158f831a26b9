// SPDX-License-Identifier: Apache-2.0
#include "train/data/chunk_filters.h"

#include <libdeflate.h>

#include <algorithm>
#include <cstring>
#include <memory>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "common/error.h"

namespace af::train {
namespace {

constexpr std::size_t kChecksumBytes = 4;

void inflate(const std::vector<std::byte>& stored, std::size_t bytes, std::byte* out) {
  struct Free {
    void operator()(libdeflate_decompressor* one) const { libdeflate_free_decompressor(one); }
  };
  // It has tables of its own, and is not for several threads at once.
  static thread_local const std::unique_ptr<libdeflate_decompressor, Free> decompressor(
      libdeflate_alloc_decompressor());
  if (!decompressor) throw Error("no memory to decompress a chunk");
  std::size_t got = 0;
  const auto result = libdeflate_zlib_decompress(decompressor.get(), stored.data(), stored.size(),
                                                 out, bytes, &got);
  if (result == LIBDEFLATE_INSUFFICIENT_SPACE || (result == LIBDEFLATE_SUCCESS && got != bytes))
    throw Error::format("a compressed chunk has another size than {} bytes: the file is damaged",
                        bytes);
  if (result != LIBDEFLATE_SUCCESS)
    throw Error("a compressed chunk cannot be decompressed: the file is damaged");
}

void remove_checksum(std::vector<std::byte>& stored) {
  if (stored.size() < kChecksumBytes)
    throw Error("a chunk is too short for its checksum: the file is damaged");
  const std::size_t bytes = stored.size() - kChecksumBytes;
  uint32_t written = 0;
  for (std::size_t i = kChecksumBytes; i-- > 0;)
    written = written << 8 | std::to_integer<uint32_t>(stored[bytes + i]);
  const uint32_t computed = fletcher32(stored.data(), bytes);
  // HDF5 before 1.6.3 swapped the bytes of both halves on machines like ours, and reads both since.
  const uint32_t old = (computed & 0x00ff00ffU) << 8 | (computed >> 8 & 0x00ff00ffU);
  if (written != computed && written != old)
    throw Error("a chunk does not fit its checksum (fletcher32): the file is damaged");
  stored.resize(bytes);
}

#if defined(__SSE2__)
// The planes of 16 elements, pairwise interleaved until whole elements lie beside each other.
template <int size>
std::size_t unshuffle_16(const std::byte* shuffled, std::size_t elements, std::byte* out) {
  std::size_t i = 0;
  for (; i + 16 <= elements; i += 16) {
    __m128i now[size];
    for (int plane = 0; plane < size; ++plane)
      now[plane] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(
          shuffled + static_cast<std::size_t>(plane) * elements + i));
    for (int step = 1; step < size; step *= 2) {
      __m128i next[size];
      for (int j = 0; j < size / 2; ++j) {
        next[2 * j] = _mm_unpacklo_epi8(now[j], now[j + size / 2]);
        next[2 * j + 1] = _mm_unpackhi_epi8(now[j], now[j + size / 2]);
      }
      std::copy(next, next + size, now);
    }
    for (int part = 0; part < size; ++part)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * size + part * 16), now[part]);
  }
  return i;
}
#endif

}  // namespace

uint32_t fletcher32(const std::byte* data, std::size_t bytes) {
  uint32_t first = 0;
  uint32_t second = 0;
  const auto add = [&](uint32_t word) {
    first += word;
    second += first;
  };
  const auto fold = [&] {
    first = (first & 0xffff) + (first >> 16);
    second = (second & 0xffff) + (second >> 16);
  };
  const std::size_t words = bytes / 2;
  for (std::size_t i = 0; i < words;) {
    // 360 words are the most before the sums could run over.
    for (const std::size_t end = std::min(words, i + 360); i < end; ++i)
      add(std::to_integer<uint32_t>(data[2 * i]) << 8 | std::to_integer<uint32_t>(data[2 * i + 1]));
    fold();
  }
  if (bytes % 2 != 0) {
    add(std::to_integer<uint32_t>(data[bytes - 1]) << 8);
    fold();
  }
  fold();
  return second << 16 | first;
}

void unshuffle(const std::byte* shuffled, std::size_t bytes, std::size_t element_bytes,
               std::byte* out) {
  if (element_bytes < 2) {
    std::memcpy(out, shuffled, bytes);
    return;
  }
  const std::size_t elements = bytes / element_bytes;
  std::size_t done = 0;
#if defined(__SSE2__)
  if (element_bytes == 2) done = unshuffle_16<2>(shuffled, elements, out);
  if (element_bytes == 4) done = unshuffle_16<4>(shuffled, elements, out);
  if (element_bytes == 8) done = unshuffle_16<8>(shuffled, elements, out);
#endif
  // A few hundred elements at a time, so that what is written stays in the cache for all planes.
  while (done < elements) {
    const std::size_t end = std::min(elements, done + 256);
    for (std::size_t plane = 0; plane < element_bytes; ++plane)
      for (std::size_t i = done; i < end; ++i)
        out[i * element_bytes + plane] = shuffled[plane * elements + i];
    done = end;
  }
  const std::size_t whole = elements * element_bytes;
  std::memcpy(out + whole, shuffled + whole, bytes - whole);
}

void undo_filters(const ChunkPipeline& pipeline, uint32_t skipped, std::vector<std::byte>& stored,
                  std::byte* out) {
  static thread_local std::vector<std::byte> scratch;
  const auto applied = [&](std::size_t i) { return (skipped >> i & 1) == 0; };
  // How many bytes went into filter i at writing, which its undoing gives.
  const auto bytes_before = [&](std::size_t i) {
    std::size_t bytes = pipeline.chunk_bytes;
    for (std::size_t j = 0; j < i; ++j)
      if (pipeline.filters[j] == ChunkFilter::fletcher32 && applied(j)) bytes += kChecksumBytes;
    return bytes;
  };
  // The first filter that makes a copy writes into `out`, if it gives the chunk's bytes.
  std::size_t last_copy = pipeline.filters.size();
  for (std::size_t i = 0; i < pipeline.filters.size(); ++i)
    if (applied(i) && pipeline.filters[i] != ChunkFilter::fletcher32) {
      if (bytes_before(i) == pipeline.chunk_bytes) last_copy = i;
      break;
    }
  for (std::size_t i = pipeline.filters.size(); i-- > 0;) {
    if (!applied(i)) continue;
    if (pipeline.filters[i] == ChunkFilter::fletcher32) {
      remove_checksum(stored);
      continue;
    }
    const bool to_out = i == last_copy;
    const std::size_t bytes =
        pipeline.filters[i] == ChunkFilter::deflate ? bytes_before(i) : stored.size();
    if (to_out && bytes != pipeline.chunk_bytes) break;  // said below
    if (!to_out) scratch.resize(bytes);
    std::byte* target = to_out ? out : scratch.data();
    if (pipeline.filters[i] == ChunkFilter::deflate)
      inflate(stored, bytes, target);
    else
      unshuffle(stored.data(), bytes, pipeline.element_bytes, target);
    if (to_out) return;
    stored.swap(scratch);
  }
  if (stored.size() != pipeline.chunk_bytes)
    throw Error::format("a chunk has {} bytes and not {}: the file is damaged", stored.size(),
                        pipeline.chunk_bytes);
  std::memcpy(out, stored.data(), stored.size());
}

}  // namespace af::train
