// SPDX-License-Identifier: Apache-2.0
// Bytes of a file in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace af::train {

class FileMapping {
 public:
  // Private: what is written there does not reach the file. Throws af::Error, also where the file
  // is too short.
  FileMapping(const std::filesystem::path& path, uint64_t offset, std::size_t bytes);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  void* start_ = nullptr;  // of the page
  std::size_t length_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace af::train
