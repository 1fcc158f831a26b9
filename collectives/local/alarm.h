// SPDX-License-Identifier: Apache-2.0
// The end of a communicator, known at once to everyone who waits in it.
//
// raise() keeps the first failure, writes it into the node's segment, tells linked ranks and wakes
// all sleepers. check() is what each waiting loop calls. mark_dead() only notes that a rank is
// gone: an operation that does not need that rank any more still completes.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/local/segment.h"

namespace af::local {

class Alarm {
 public:
  Alarm(int rank, int world_size);

  // Before other threads use it. `segment` may be empty, and both must outlive the alarm's use.
  void connect(const Segment* segment, std::vector<int> control_fds);

  // Any thread; the first call wins. Never blocks.
  void raise(const CommunicatorError& error) noexcept;
  void raise_from_peer(const FailureRecord& record) noexcept;
  // Frees the threads of this rank only: leaving is no failure of the others, who may still be
  // reading what this rank gave them.
  void close() noexcept;
  // Throws the first failure, if there is one here or in the segment.
  void check();
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // Also of a failure that another thread is only just telling the others.
  bool failed() noexcept;
  // Readable from the first failure on.
  int event() const { return event_.get(); }

  void mark_dead(int rank) noexcept;
  bool is_dead(int rank) const { return dead_[rank].load(std::memory_order_acquire); }

 private:
  void keep(const CommunicatorError& error) noexcept;
  void spread(const CommunicatorError& error, const FailureRecord& record) noexcept;

  const int rank_;
  std::vector<std::atomic<bool>> dead_;
  UniqueFd event_;
  const Segment* segment_ = nullptr;
  std::vector<int> control_fds_;
  std::atomic<bool> raised_{false};
  std::mutex mutex_;
  bool claimed_ = false;  // some thread spreads the first failure
  std::optional<CommunicatorError> first_;
};

}  // namespace af::local
