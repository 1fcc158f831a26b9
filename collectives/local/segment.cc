// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "collectives/local/futex.h"

namespace af::local {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t page_up(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

[[noreturn]] void fail(const std::string& what) {
  throw CommunicatorError(CommunicatorError::Kind::system, what + ": " + std::strerror(errno));
}

}  // namespace

std::size_t Segment::small_begin(int ranks) {
  return page_up(sizeof(SegmentHeader)) + page_up(std::size_t(ranks) * sizeof(RankSlot));
}

std::size_t Segment::stage_begin(int ranks) {
  return small_begin(ranks) + std::size_t(ranks) * 2 * kSmallBytes;
}

Segment Segment::create(int ranks, std::size_t stage_bytes, int stages) {
  Segment segment;
  segment.fd_.reset(memfd_create("af-collectives", MFD_CLOEXEC));
  if (!segment.fd_) fail("cannot make shared memory (memfd_create)");
  // Pages are taken at the first touch: what a world does not use costs nothing.
  const std::size_t bytes =
      stage_begin(ranks) + (std::size_t(ranks) + 1) * std::size_t(stages) * stage_bytes;
  if (ftruncate(segment.fd_.get(), off_t(bytes)) != 0) fail("cannot size shared memory");
  segment.map(bytes);
  SegmentHeader* const made = new (segment.base_) SegmentHeader{};
  made->ranks = std::uint32_t(ranks);
  made->stages = std::uint32_t(stages);
  made->stage_bytes = stage_bytes;
  made->total_bytes = bytes;
  for (int i = 0; i < ranks; ++i) new (&segment.slot(i)) RankSlot{};
  made->magic = SegmentHeader::kMagic;
  return segment;
}

Segment Segment::attach(UniqueFd fd) {
  Segment segment;
  segment.fd_ = std::move(fd);
  struct stat status = {};
  if (fstat(segment.fd_.get(), &status) != 0) fail("cannot read the size of shared memory");
  const std::size_t bytes = std::size_t(status.st_size);
  if (bytes < kPage) {
    throw CommunicatorError(CommunicatorError::Kind::system, "the shared segment is too small");
  }
  segment.map(bytes);
  const SegmentHeader& header = segment.header();
  if (header.magic != SegmentHeader::kMagic || header.total_bytes != bytes) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            "the shared segment is of another version of af: start all ranks with "
                            "the same libaf_collectives.so");
  }
  return segment;
}

void Segment::map(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (base == MAP_FAILED) fail("cannot map shared memory");
  // A child that lives on (a DataLoader worker) would keep it when its world has long gone.
  madvise(base, bytes, MADV_DONTFORK);
  base_ = static_cast<char*>(base);
  bytes_ = bytes;
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

RankSlot& Segment::slot(int index) const {
  return reinterpret_cast<RankSlot*>(base_ + page_up(sizeof(SegmentHeader)))[index];
}

char* Segment::small(int index, std::uint64_t parity) const {
  return base_ + small_begin(ranks()) + (std::size_t(index) * 2 + parity % 2) * kSmallBytes;
}

char* Segment::stage(int index, std::uint64_t tick) const {
  const std::size_t place = std::size_t(index) * stages() + tick % stages();
  return base_ + stage_begin(ranks()) + place * stage_bytes();
}

char* Segment::result(std::uint64_t tick) const {
  return stage(ranks(), tick);
}

void Segment::wake_all() const {
  for (int i = 0; i < ranks(); ++i) {
    RankSlot& s = slot(i);
    for (Counter* counter : {&s.in, &s.reduced, &s.net}) wake_sleepers(*counter);
  }
}

}  // namespace af::local
