// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/file_sum.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <vector>

#include "common/error.h"
#include "common/unique_fd.h"

namespace af::train {

FileSum sum_of(const void* data, std::size_t bytes) {
  return {bytes, add_to(0, data, bytes)};
}

uint32_t add_to(uint32_t crc, const void* data, std::size_t bytes) {
  // A null pointer asks libdeflate for its first value, whatever the length.
  return bytes == 0 ? crc : libdeflate_crc32(crc, data, bytes);
}

// libdeflate cannot join two sums; zlib can, in a time that does not grow with their lengths.
FileSum join(const FileSum& first, const FileSum& second) {
  const auto length = static_cast<z_off_t>(second.bytes);
  static_assert(sizeof length == sizeof second.bytes, "files of more than 2 GiB");
  return {first.bytes + second.bytes,
          static_cast<uint32_t>(::crc32_combine(first.crc32, second.crc32, length))};
}

FileSum sum_of_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw errno_error("cannot read " + path.string());
  FileSum sum;
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot read " + path.string());
    if (n == 0) return sum;
    sum.bytes += static_cast<uint64_t>(n);
    sum.crc32 = add_to(sum.crc32, buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace af::train
