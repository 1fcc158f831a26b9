// SPDX-License-Identifier: Apache-2.0
// A zip archive of a planned layout being written, in any order, by one process or several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "train/checkpoint/zip_layout.h"

namespace af::train {

class ArchiveFile {
 public:
  // shared: by the first of several processes, whichever that is.
  enum class Open { create, shared };
  // Throws af::Error with the path, as everything here does.
  ArchiveFile(std::filesystem::path path, Open how);

  // Puts `bytes` bytes to byte `first` of an entry.
  WrittenPart write(const ZipLayout& layout, std::size_t entry, uint64_t first, const void* data,
                    std::size_t bytes);
  // Bytes of the file, wherever they belong.
  void write_at(uint64_t offset, const void* data, std::size_t bytes);
  // The headers and the directory, when all parts are there. Returns the sum of the whole file.
  FileSum finish(const ZipLayout& layout, std::vector<WrittenPart> parts);
  // All that this process has written is on the disk, and others see it.
  void sync_and_close();

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace af::train
