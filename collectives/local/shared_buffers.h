// SPDX-License-Identifier: Apache-2.0
// The memory of allocate(): each rank's buffer, mapped into every rank of its node.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/backend.h"
#include "collectives/local/handshake.h"

namespace af::local {

// One memfd mapped once. The page after the buffer holds the flag that its owner has let go of it.
class Mapping {
 public:
  static std::shared_ptr<Mapping> create(std::size_t bytes);
  static std::shared_ptr<Mapping> attach(UniqueFd fd, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  // Puts private memory with the same bytes in its place, at the same address. Nobody else may
  // write to it meanwhile. Without memory for that it stays as it is.
  void make_private() const;
  int fd() const { return fd_.get(); }
  void close_fd() { fd_.reset(); }
  std::atomic<std::uint32_t>& freed() const;

 private:
  Mapping(UniqueFd fd, std::size_t bytes);

  UniqueFd fd_;
  char* base_ = nullptr;
  std::size_t bytes_ = 0;         // as asked for
  std::size_t mapped_bytes_ = 0;  // with padding and flag page
};

// Where a pointer lies: buffer is 1 + its number, 0 for private memory.
struct Place {
  std::uint32_t buffer = 0;
  std::uint64_t offset = 0;
};

class SharedBuffers {
 public:
  explicit SharedBuffers(int node_ranks, int own_index);

  // Collective in the node: makes this rank's buffer, passes it to the node's ranks over their data
  // links and takes theirs. `index_of` gives a link's local index.
  std::shared_ptr<Memory> allocate(std::size_t bytes, const std::vector<Link>& links,
                                   const std::vector<int>& index_of, Alarm& alarm,
                                   Clock::time_point deadline);
  Place find(const void* data, std::size_t bytes) const;
  // Takes this rank's buffers from the others' hands: a rank that was stopped in an operation would
  // go on with it when continued, and write into them.
  void make_private();
  // Where rank `index` of the node sees that place of its own; null if this rank lacks the mapping.
  char* resolve(int index, const Place& place, std::size_t bytes) const;

 private:
  struct Entry {
    std::vector<std::shared_ptr<Mapping>> mappings;  // by local index
  };
  void prune();

  const int node_ranks_;
  const int own_index_;
  mutable std::mutex mutex_;  // a Buffer may be let go of by any thread
  std::uint32_t next_ = 1;
  std::map<std::uint32_t, Entry> entries_;
};

}  // namespace af::local
