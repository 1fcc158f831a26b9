// SPDX-License-Identifier: Apache-2.0
// Where everything of a zip archive lies, planned from the names and sizes of its entries alone, so
// that their bytes can be written in any order and by several processes at once.
//
//   offset header of entry 0     30 bytes, the name, a padding field
//          data of entry 0       stored, at a multiple of 64
//          header of entry 1     directly behind
//          …
//          central directory, zip64 end records where needed, end record
//
// The format is PKWARE's APPNOTE 6.3.9, as torch.save uses it: stored entries, aligned by an extra
// field "FB", zip64 fields for what does not fit into 32 bits. Unlike torch.save's, headers hold
// the CRC-32, and no data descriptor follows: they are written when the data is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "train/checkpoint/file_sum.h"

namespace af::train {

class ZipLayout {
 public:
  struct Entry {
    std::string name;
    uint64_t bytes = 0;
    std::string label;    // for errors; the name if empty
    uint64_t header = 0;  // offset in the file
    uint64_t data = 0;
  };

  // Offsets are filled in. Throws af::Error for a name over 65,535 bytes.
  explicit ZipLayout(std::vector<Entry> entries);

  const std::vector<Entry>& entries() const { return entries_; }
  uint64_t directory_offset() const { return directory_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // From entries()[i].header to entries()[i].data.
  std::string header(std::size_t i, uint32_t crc) const;
  // From directory_offset() to the end of the file. One CRC for each entry.
  std::string directory(const std::vector<uint32_t>& crcs) const;

 private:
  std::vector<Entry> entries_;
  uint64_t directory_ = 0;
  uint64_t file_bytes_ = 0;
};

// A part of an entry's data that has been written.
struct WrittenPart {
  std::size_t entry = 0;
  uint64_t first = 0;  // byte of the entry
  FileSum sum;
};
// The CRC-32 of each entry. The parts may come in any order and must cover each entry once. Throws
// af::Error naming an entry that lacks bytes or has some twice.
std::vector<uint32_t> crcs_of(const ZipLayout& layout, std::vector<WrittenPart> parts);

// Of the whole file.
FileSum sum_of_archive(const ZipLayout& layout, const std::vector<uint32_t>& crcs);

}  // namespace af::train
