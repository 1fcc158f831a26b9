// SPDX-License-Identifier: Apache-2.0
#include "train/data/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/error.h"

namespace af::train {

FileMapping::FileMapping(const std::filesystem::path& path, uint64_t offset, std::size_t bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw errno_error("cannot read " + path.string());
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (!known || static_cast<uint64_t>(status.st_size) < offset + bytes) {
    ::close(file);
    throw Error::format(
        "cannot read {}: it ends at byte {}, and its data at {}: the file is cut off",
        path.string(), known ? status.st_size : 0, offset + bytes);
  }
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t start = offset / page * page;
  length_ = bytes + (offset - start);
  start_ = ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file,
                  static_cast<off_t>(start));
  const int reason = errno;
  ::close(file);
  if (start_ == MAP_FAILED) {
    errno = reason;
    throw errno_error("cannot map " + path.string());
  }
  data_ = static_cast<std::byte*>(start_) + (offset - start);
}

FileMapping::~FileMapping() {
  ::munmap(start_, length_);
}

}  // namespace af::train
