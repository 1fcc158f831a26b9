// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one node share for one communicator (docs/collectives.md has the
// layout byte by byte). Made by the node's first rank, handed to the others as a descriptor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/local/failure_record.h"
#include "common/unique_fd.h"

namespace af::local {

// A number that its owner only raises and others wait for, alone on its cache line. 64 bits, since
// a counter that an operation does not use may stay behind for longer than 2^31 operations; the
// futex is on the low half.
struct alignas(64) Counter {
  std::atomic<std::uint64_t> value;
  std::atomic<std::uint32_t> sleepers;
};
static_assert(sizeof(Counter) == 64);

// What a rank says of the operation it has come to.
struct alignas(64) Call {
  std::uint64_t index;      // operations before it on this communicator
  std::uint64_t count;      // elements
  std::uint32_t signature;  // kind, type, op, root: see signature_of()
  std::uint32_t in_buffer;  // 1 + number of the allocate() that `in` lies in; 0: private memory
  std::uint64_t in_offset;  // bytes from that buffer's start
  std::uint32_t out_buffer;
  std::uint32_t reserved;
  std::uint64_t out_offset;
  double pre_scale;
};
static_assert(sizeof(Call) == 64);

struct alignas(64) RankSlot {
  Counter in;       // chunks whose input is there
  Counter reduced;  // chunks of which this rank has done its share
  Counter net;      // chunks that this lane has exchanged with the other nodes
  // 1 + the rank that this one sleeps for, 0 if awake: lets a timeout name the true culprit.
  alignas(64) std::atomic<std::int32_t> blocked_on;
  Call calls[2];  // by parity of the operation's index
};
static_assert(sizeof(RankSlot) == 384);

struct SegmentHeader {
  static constexpr std::uint64_t kMagic = 0x32304c4f43464641;  // "AFFCOL02"
  std::uint64_t magic;
  std::uint32_t ranks;
  std::uint32_t stages;  // chunks that may be under way at once
  std::uint64_t stage_bytes;
  std::uint64_t total_bytes;
  // 0 none, 1 being written, 2 there. Whoever moves it from 0 to 1 writes the record.
  alignas(64) std::atomic<std::uint32_t> failed;
  alignas(64) FailureRecord failure;
};

class Segment {
 public:
  static constexpr std::size_t kSmallBytes = 16 * 1024;  // of one small message

  Segment() = default;
  // `stage_bytes`: size of a chunk, a multiple of 4096. Throws CommunicatorError (system).
  static Segment create(int ranks, std::size_t stage_bytes, int stages);
  static Segment attach(UniqueFd fd);  // checks what it finds
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  explicit operator bool() const { return base_ != nullptr; }
  int fd() const { return fd_.get(); }
  int ranks() const { return int(header().ranks); }
  std::size_t stage_bytes() const { return header().stage_bytes; }
  std::size_t stages() const { return header().stages; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  RankSlot& slot(int index) const;
  char* small(int index, std::uint64_t parity) const;  // kSmallBytes
  char* stage(int index, std::uint64_t tick) const;    // stage_bytes, a rank's own
  char* result(std::uint64_t tick) const;              // stage_bytes, common

  // Wakes every sleeper on any counter.
  void wake_all() const;

 private:
  void map(std::size_t bytes);
  static std::size_t small_begin(int ranks);
  static std::size_t stage_begin(int ranks);

  UniqueFd fd_;
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace af::local
