// SPDX-License-Identifier: Apache-2.0
// Files that a reader sees whole or not at all.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string_view>

namespace af {

// Writes `content` to a temporary file beside `path`, fsyncs it, renames it into place and fsyncs
// the directory. After a crash the old file or the new one is there, never a part.
// Throws Error (the disk is full, no permission, …); the old file is then as it was.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           mode_t mode = 0644);

// The whole file. Throws Error with the path and the reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace af
