// SPDX-License-Identifier: Apache-2.0
// A file that only grows, by whole records: a write that fails leaves none of it behind.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "common/unique_fd.h"

namespace af::train {

// Use from one thread; one writer a file.
class AppendFile {
 public:
  AppendFile() = default;
  // Opens or makes it, and its directory. Throws Error.
  explicit AppendFile(const std::filesystem::path& path);

  // One that is open for reading and writing; `name` for messages.
  AppendFile(UniqueFd fd, std::filesystem::path name)
      : path_(std::move(name)), fd_(std::move(fd)) {}

  explicit operator bool() const { return static_cast<bool>(fd_); }
  const std::filesystem::path& path() const { return path_; }
  // All of it or, with an Error, nothing.
  void append(std::string_view bytes);
  // Makes the file `size` bytes long, which may not be more than it has.
  void truncate(int64_t size);
  int64_t size() const;
  // Up to `most` bytes from `offset` on.
  std::string read(int64_t offset, int64_t most) const;
  // flock() against other processes, until it is closed. False: another has it.
  bool lock();

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace af::train
