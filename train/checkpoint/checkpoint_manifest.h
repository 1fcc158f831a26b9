// SPDX-License-Identifier: Apache-2.0
// manifest.json of a checkpoint directory: which files belong to it, their sizes and checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "train/checkpoint/file_sum.h"

namespace af::train {

inline constexpr char kManifestName[] = "manifest.json";

// By name in the checkpoint.
using FileSums = std::map<std::string, FileSum>;

// The text of the manifest for the regular files in `directory` and below; those that are not in
// `known` are read. Throws af::Error, also for a link, a socket or the like in there, which a copy
// would not keep.
std::string manifest_of(const std::filesystem::path& directory, int64_t step,
                        const FileSums& known = {});

// Throws af::Error, with the reason, unless the directory is what its manifest says. kSizes reads
// no file but the manifest.
enum class Depth { kSizes, kChecksums };
void verify_manifest(const std::filesystem::path& directory, int64_t step, Depth depth);

}  // namespace af::train
