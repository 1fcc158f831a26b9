// SPDX-License-Identifier: Apache-2.0
// manifest.json of a checkpoint directory: which files belong to it, their sizes and checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace af::train {

inline constexpr char kManifestName[] = "manifest.json";

// The CRC-32 of a file's bytes (zlib's polynomial) and how many there are. Throws af::Error.
struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};
FileSum sum_of_file(const std::filesystem::path& path);

// The text of the manifest for the regular files in `directory` and below. Throws af::Error, also
// for a link, a socket or the like in there, which a copy would not keep.
std::string manifest_of(const std::filesystem::path& directory, int64_t step);

// Throws af::Error, with the reason, unless the directory is what its manifest says. kSizes reads
// no file but the manifest.
enum class Depth { kSizes, kChecksums };
void verify_manifest(const std::filesystem::path& directory, int64_t step, Depth depth);

}  // namespace af::train
