// SPDX-License-Identifier: Apache-2.0
#include "train/data/chunk_filters.h"

#include <gtest/gtest.h>
#include <libdeflate.h>

#include "common/error.h"
#include "train/data/number_format.h"

namespace af::train {
namespace {

using Bytes = std::vector<std::byte>;

Bytes some_bytes(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * i % 251 + i / 251);
  return bytes;
}

Bytes shuffled(const Bytes& plain, std::size_t size) {
  Bytes out;
  const std::size_t elements = plain.size() / size;
  for (std::size_t plane = 0; plane < size; ++plane)
    for (std::size_t i = 0; i < elements; ++i) out.push_back(plain[i * size + plane]);
  out.insert(out.end(), plain.begin() + static_cast<std::ptrdiff_t>(elements * size), plain.end());
  return out;
}

Bytes deflated(const Bytes& plain) {
  libdeflate_compressor* compressor = libdeflate_alloc_compressor(4);
  Bytes out(libdeflate_zlib_compress_bound(compressor, plain.size()));
  out.resize(
      libdeflate_zlib_compress(compressor, plain.data(), plain.size(), out.data(), out.size()));
  libdeflate_free_compressor(compressor);
  return out;
}

Bytes with_checksum(Bytes bytes) {
  const uint32_t sum = fletcher32(bytes.data(), bytes.size());
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(sum >> 8 * i));
  return bytes;
}

TEST(ChunkFilters, UnshuffleOfEverySize) {
  for (const std::size_t size : {1, 2, 3, 4, 7, 8, 12, 16})
    for (const std::size_t count : {0, 1, 15, 16, 17, 100, 1000}) {
      const Bytes plain = some_bytes(count * size + (size > 2 ? 2 : 0));
      const Bytes in = shuffled(plain, size);
      Bytes out(plain.size());
      unshuffle(in.data(), in.size(), size, out.data());
      EXPECT_EQ(out, plain) << size << " " << count;
    }
}

TEST(ChunkFilters, EveryPipelineIsUndone) {
  using enum ChunkFilter;
  const Bytes plain = some_bytes(4096);
  for (const auto& filters :
       std::vector<std::vector<ChunkFilter>>{{},
                                             {deflate},
                                             {shuffle},
                                             {fletcher32},
                                             {shuffle, deflate},
                                             {deflate, shuffle},
                                             {shuffle, deflate, fletcher32},
                                             {fletcher32, shuffle, deflate},
                                             {fletcher32, fletcher32, deflate}})
    for (uint32_t skipped = 0; skipped < 1U << filters.size(); ++skipped) {
      Bytes stored = plain;
      for (std::size_t i = 0; i < filters.size(); ++i) {
        if ((skipped >> i & 1) != 0) continue;
        if (filters[i] == deflate) stored = deflated(stored);
        if (filters[i] == shuffle) stored = shuffled(stored, 4);
        if (filters[i] == fletcher32) stored = with_checksum(stored);
      }
      const ChunkPipeline pipeline{filters, 4, plain.size()};
      Bytes out(plain.size());
      undo_filters(pipeline, skipped, stored, out.data());
      EXPECT_EQ(out, plain) << filters.size() << " filters without " << skipped;
    }
}

TEST(ChunkFilters, DamageIsNoticed) {
  using enum ChunkFilter;
  const Bytes plain = some_bytes(512);
  Bytes out(plain.size());
  const auto undone = [&](std::vector<ChunkFilter> filters, Bytes stored) -> std::string {
    try {
      undo_filters({std::move(filters), 4, plain.size()}, 0, stored, out.data());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  Bytes damaged = with_checksum(plain);
  damaged[77] ^= std::byte{1};
  EXPECT_NE(undone({fletcher32}, damaged).find("checksum"), std::string::npos);
  EXPECT_NE(undone({fletcher32}, Bytes(3)).find("too short"), std::string::npos);
  EXPECT_NE(undone({deflate}, plain).find("damaged"), std::string::npos);
  EXPECT_NE(undone({deflate}, deflated(some_bytes(511))).find("size"), std::string::npos);
  EXPECT_NE(undone({deflate}, deflated(some_bytes(513))).find("size"), std::string::npos);
  EXPECT_NE(undone({shuffle}, some_bytes(500)).find("500"), std::string::npos);
  EXPECT_NE(undone({}, some_bytes(600)).find("600"), std::string::npos);
}

TEST(ChunkFilters, ChecksumsOfOldFilesAreRead) {
  const Bytes plain = some_bytes(101);
  Bytes stored = with_checksum(plain);
  std::swap(stored[101], stored[102]);
  std::swap(stored[103], stored[104]);
  Bytes out(plain.size());
  undo_filters({{ChunkFilter::fletcher32}, 1, plain.size()}, 0, stored, out.data());
  EXPECT_EQ(out, plain);
}

TEST(NumberFormat, NumbersApartFromEachOther) {
  const uint16_t values[] = {0x0102, 7, 0xfffe, 9};
  float floats[8] = {};
  const auto* from = reinterpret_cast<const std::byte*>(values);
  converter({NumberKind::u16, true}, at::kFloat)(from, 4, reinterpret_cast<std::byte*>(floats), 8,
                                                 2);
  EXPECT_EQ(floats[0], 0x0201);
  EXPECT_EQ(floats[1], 0);
  EXPECT_EQ(floats[2], 0xfeff);
}

TEST(NumberFormat, WhatIsTooLargeIsTheLargest) {
  const uint64_t values[] = {5, ~uint64_t{0}};
  int64_t out[2];
  converter({NumberKind::u64}, at::kLong)(reinterpret_cast<const std::byte*>(values), 8,
                                          reinterpret_cast<std::byte*>(out), 8, 2);
  EXPECT_EQ(out[0], 5);
  EXPECT_EQ(out[1], INT64_MAX);
}

TEST(NumberFormat, WhatIsNotConverted) {
  EXPECT_EQ(converter({NumberKind::f32}, at::kLong), nullptr);
  EXPECT_EQ(converter({NumberKind::i64}, at::kByte), nullptr);
  EXPECT_NE(converter({NumberKind::u8}, at::kLong), nullptr);
}

}  // namespace
}  // namespace af::train
