// SPDX-License-Identifier: Apache-2.0
#include "common/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "common/error.h"
#include "common/unique_fd.h"

namespace af {
namespace {

void write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot write " + path);
    content.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           mode_t mode) {
  std::string temporary = path.string() + ".tmp-XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) throw errno_error("cannot create " + temporary);
  try {
    write_all(fd.get(), content, temporary);
    if (::fchmod(fd.get(), mode) != 0) throw errno_error("cannot set the mode of " + temporary);
    if (::fsync(fd.get()) != 0) throw errno_error("cannot fsync " + temporary);
    // Quotas of network file systems are often reported by close() only.
    if (::close(fd.release()) != 0) throw errno_error("cannot close " + temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw errno_error("cannot rename " + temporary + " to " + path.string());
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) ::fsync(directory.get());
}

std::string read_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw errno_error("cannot read " + path.string());
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot read " + path.string());
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace af
