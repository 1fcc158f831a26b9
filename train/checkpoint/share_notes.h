// SPDX-License-Identifier: Apache-2.0
// How ranks that write shares of one checkpoint tell rank 0 that theirs are on the disk: by files
// in the directory that is being written, which rank 0 removes again.
//
//   share-3.writing   rank 3 is at work
//   share-3.json      its share is durable: [[entry, first byte, bytes, "crc32"], …]
//   share-3.failed    it could not be written: the text says why
//
// Files and no messages: the training owns the communicator, which may be gone any time, and what
// says that a share is durable lies where the share does.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <vector>

#include "train/checkpoint/zip_layout.h"

namespace af::train {

// Of one rank. Made before the share is written; throws af::Error if the directory is not there
// any more (rank 0 has given the checkpoint up) or nothing can be written.
class ShareNote {
 public:
  ShareNote(const std::filesystem::path& directory, int rank);
  void durable(const std::vector<WrittenPart>& parts) const;
  // Renames only: it works on a full disk, too. Never throws.
  void failed(const char* why) const;

 private:
  std::filesystem::path writing_;
  std::filesystem::path done_;
  std::filesystem::path failed_;
};

enum class Patience { wait, give_up };
// The parts of `ranks`, when all have said them; their notes are removed then. `patience` is asked
// time and again. Throws af::Error, naming the rank, when one has failed, or those that have not
// come when there is no more patience.
std::vector<WrittenPart> wait_for_shares(const std::filesystem::path& directory,
                                         std::vector<int> ranks,
                                         const std::function<Patience()>& patience);

}  // namespace af::train
