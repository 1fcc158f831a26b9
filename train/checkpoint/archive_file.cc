// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/archive_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

// So much at a time is summed up and written: it stays in the cache between the two.
constexpr std::size_t kBlock = std::size_t{1} << 20;

}  // namespace

ArchiveFile::ArchiveFile(std::filesystem::path path, Open how) : path_(std::move(path)) {
  // Write only: an NFS client that has never read a page sends just what was written of it, and
  // leaves alone what other nodes write beside.
  const int flags = O_WRONLY | O_CLOEXEC | O_CREAT | (how == Open::create ? O_TRUNC : 0);
  fd_.reset(::open(path_.c_str(), flags, 0666));
  if (!fd_) throw errno_error("cannot create " + path_.string());
}

void ArchiveFile::write_at(uint64_t offset, const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot write " + path_.string());
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

WrittenPart ArchiveFile::write(const ZipLayout& layout, std::size_t entry, uint64_t first,
                               const void* data, std::size_t bytes) {
  const ZipLayout::Entry& to = layout.entries().at(entry);
  if (first > to.bytes || bytes > to.bytes - first)
    throw Error::format("{}: {} bytes at {} of {}, which has {}", path_.string(), bytes, first,
                        to.label, to.bytes);
  WrittenPart part{entry, first, {}};
  const char* from = static_cast<const char*>(data);
  while (part.sum.bytes < bytes) {
    const std::size_t done = part.sum.bytes;
    const std::size_t n = std::min(kBlock, bytes - done);
    part.sum = {done + n, add_to(part.sum.crc32, from + done, n)};
    write_at(to.data + first + done, from + done, n);
  }
  return part;
}

FileSum ArchiveFile::finish(const ZipLayout& layout, std::vector<WrittenPart> parts) {
  const std::vector<uint32_t> crcs = crcs_of(layout, std::move(parts));
  for (std::size_t i = 0; i < layout.entries().size(); ++i) {
    const std::string header = layout.header(i, crcs[i]);
    write_at(layout.entries()[i].header, header.data(), header.size());
  }
  const std::string directory = layout.directory(crcs);
  write_at(layout.directory_offset(), directory.data(), directory.size());
  return sum_of_archive(layout, crcs);
}

void ArchiveFile::sync_and_close() {
  if (::fsync(fd_.get()) != 0) throw errno_error("cannot fsync " + path_.string());
  // Behind close() the next process to open the file sees all of it, on NFS too. An error here is
  // one of the writing.
  if (::close(fd_.release()) != 0) throw errno_error("cannot close " + path_.string());
}

}  // namespace af::train
