// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/shared_buffers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace af::local {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t page_up(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// What the user's Buffer holds. It keeps the mapping alive, also after its communicator has gone.
class SharedMemory : public Memory {
 public:
  explicit SharedMemory(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  ~SharedMemory() override {
    // The pages go back now; the address range goes when all ranks of the node have let go.
    madvise(mapping_->data(), page_up(mapping_->bytes()), MADV_REMOVE);
    mapping_->freed().store(1, std::memory_order_release);
  }
  void* data() const override { return mapping_->data(); }
  std::size_t bytes() const override { return mapping_->bytes(); }

 private:
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace

Mapping::Mapping(UniqueFd fd, std::size_t bytes)
    : fd_(std::move(fd)), bytes_(bytes), mapped_bytes_(page_up(bytes) + kPage) {
  void* base = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (base == MAP_FAILED) {
    throw CommunicatorError(
        CommunicatorError::Kind::system,
        "cannot map " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(errno));
  }
  base_ = static_cast<char*>(base);
}

Mapping::~Mapping() {
  munmap(base_, mapped_bytes_);
}

void Mapping::make_private() const {
  const std::size_t size = mapped_bytes_ - kPage;
  void* copy = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;
  std::memcpy(copy, base_, size);
  // In one step: readers see the one or the other.
  if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, base_) == MAP_FAILED) {
    munmap(copy, size);
  }
}

std::atomic<std::uint32_t>& Mapping::freed() const {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(base_ + mapped_bytes_ - kPage);
}

std::shared_ptr<Mapping> Mapping::create(std::size_t bytes) {
  UniqueFd fd(memfd_create("af-buffer", MFD_CLOEXEC));
  const std::size_t total = page_up(bytes) + kPage;
  // Pages are taken now: too little memory is then an error here, not a SIGBUS in an operation.
  const int error = !fd ? errno
                    : ftruncate(fd.get(), off_t(total)) != 0
                        ? errno
                        : posix_fallocate(fd.get(), 0, off_t(total));
  if (error != 0) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            "cannot allocate " + std::to_string(bytes) +
                                " bytes of shared memory: " + std::strerror(error));
  }
  return std::shared_ptr<Mapping>(new Mapping(std::move(fd), bytes));
}

std::shared_ptr<Mapping> Mapping::attach(UniqueFd fd, std::size_t bytes) {
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0 || std::size_t(status.st_size) != page_up(bytes) + kPage) {
    throw CommunicatorError(
        CommunicatorError::Kind::mismatch,
        "ranks called allocate() with different sizes: " + std::to_string(bytes) + " here, " +
            std::to_string(status.st_size - off_t(kPage)) + " (rounded up to pages) there");
  }
  auto mapping = std::shared_ptr<Mapping>(new Mapping(std::move(fd), bytes));
  mapping->close_fd();
  return mapping;
}

SharedBuffers::SharedBuffers(int node_ranks, int own_index)
    : node_ranks_(node_ranks), own_index_(own_index) {}

std::shared_ptr<Memory> SharedBuffers::allocate(std::size_t bytes, const std::vector<Link>& links,
                                                const std::vector<int>& index_of, Alarm& alarm,
                                                Clock::time_point deadline) {
  prune();
  auto own = Mapping::create(bytes);
  auto memory = std::make_shared<SharedMemory>(own);
  std::vector<std::shared_ptr<Mapping>> mappings(node_ranks_);
  mappings[own_index_] = own;
  for (const Link& link : links) {
    if (link.same_node) send_fd(link.data.get(), own->fd());
  }
  own->close_fd();
  for (const Link& link : links) {
    if (!link.same_node) continue;
    UniqueFd fd = receive_fd(link.data.get());
    while (!fd) {
      alarm.check();
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() <= 0) {
        throw CommunicatorError(
            CommunicatorError::Kind::timeout,
            "rank " + std::to_string(link.rank) + " did not come to allocate() in time",
            {link.rank});
      }
      pollfd polled[] = {{link.data.get(), POLLIN, 0}, {alarm.event(), POLLIN, 0}};
      poll(polled, 2, int(left.count()));
      fd = receive_fd(link.data.get());
    }
    mappings[index_of[link.rank]] = Mapping::attach(std::move(fd), bytes);
  }
  std::lock_guard lock(mutex_);
  entries_.emplace(next_++, Entry{std::move(mappings)});
  return memory;
}

void SharedBuffers::prune() {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) {
    for (const auto& mapping : entry.second.mappings) {
      if (mapping->freed().load(std::memory_order_acquire) == 0) return false;
    }
    return true;
  });
}

void SharedBuffers::make_private() {
  std::lock_guard lock(mutex_);
  for (const auto& [number, entry] : entries_) {
    const Mapping& own = *entry.mappings[own_index_];
    if (own.freed().load(std::memory_order_acquire) == 0) own.make_private();
  }
}

Place SharedBuffers::find(const void* data, std::size_t bytes) const {
  std::lock_guard lock(mutex_);
  const char* begin = static_cast<const char*>(data);
  for (const auto& [number, entry] : entries_) {
    const Mapping& own = *entry.mappings[own_index_];
    if (begin < own.data() || begin + bytes > own.data() + own.bytes()) continue;
    return {number, std::uint64_t(begin - own.data())};
  }
  return {};
}

char* SharedBuffers::resolve(int index, const Place& place, std::size_t bytes) const {
  if (place.buffer == 0) return nullptr;
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(place.buffer);
  if (entry == entries_.end()) return nullptr;
  const Mapping& mapping = *entry->second.mappings[index];
  if (place.offset + bytes > mapping.bytes()) return nullptr;
  return mapping.data() + place.offset;
}

}  // namespace af::local
