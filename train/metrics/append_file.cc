// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/error.h"

namespace af::train {

AppendFile::AppendFile(const std::filesystem::path& path) : path_(path) {
  std::error_code why;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), why);
  if (why) throw Error::format("cannot make {}: {}", path.parent_path().string(), why.message());
  fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_) throw errno_error("cannot open " + path.string());
}

void AppendFile::append(std::string_view bytes) {
  const int64_t before = size();
  int64_t at = before;
  for (std::string_view left = bytes; !left.empty();) {
    // O_APPEND writes at the end whatever the offset; a file in memory has no O_APPEND.
    const ssize_t n = ::pwrite(fd_.get(), left.data(), left.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Error error = errno_error("cannot write " + path_.string());
      // A reader of records stops for ever at one that is not whole.
      (void)!::ftruncate(fd_.get(), before);
      throw error;
    }
    left.remove_prefix(static_cast<std::size_t>(n));
    at += n;
  }
}

void AppendFile::truncate(int64_t size) {
  if (::ftruncate(fd_.get(), size) != 0) throw errno_error("cannot shorten " + path_.string());
}

int64_t AppendFile::size() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw errno_error("cannot look at " + path_.string());
  return status.st_size;
}

std::string AppendFile::read(int64_t offset, int64_t most) const {
  std::string bytes(static_cast<std::size_t>(most), '\0');
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = ::pread(fd_.get(), bytes.data() + have, bytes.size() - have,
                              offset + static_cast<int64_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot read " + path_.string());
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

bool AppendFile::lock() {
  return ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace af::train
