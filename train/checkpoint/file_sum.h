// SPDX-License-Identifier: Apache-2.0
// Sizes and checksums of files and of parts of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace af::train {

// The CRC-32 of some bytes (zlib's polynomial) and how many there are.
struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

FileSum sum_of(const void* data, std::size_t bytes);
// The CRC-32 of what `crc` is of, with these bytes behind.
uint32_t add_to(uint32_t crc, const void* data, std::size_t bytes);
// Of the bytes of `first` with those of `second` behind them.
FileSum join(const FileSum& first, const FileSum& second);
// Reads the file. Throws af::Error.
FileSum sum_of_file(const std::filesystem::path& path);

}  // namespace af::train
