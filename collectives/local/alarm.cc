// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/alarm.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace af::local {

Alarm::Alarm(int rank, int world_size)
    : rank_(rank), dead_(std::size_t(world_size)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            std::string("cannot make an eventfd: ") + std::strerror(errno));
  }
}

void Alarm::connect(const Segment* segment, std::vector<int> control_fds) {
  segment_ = segment;
  control_fds_ = std::move(control_fds);
}

void Alarm::raise(const CommunicatorError& error) noexcept {
  spread(error, make_record(error, rank_));
}

void Alarm::raise_from_peer(const FailureRecord& record) noexcept {
  // Passed on once: a rank without connections to other nodes learns of their failures this way.
  spread(to_error(record), record);
}

bool Alarm::failed() noexcept {
  const std::lock_guard lock(mutex_);
  return claimed_ || first_.has_value();
}

void Alarm::close() noexcept {
  keep(CommunicatorError(CommunicatorError::Kind::aborted, "the communicator was closed"));
  if (segment_ != nullptr && *segment_) segment_->wake_all();
}

void Alarm::keep(const CommunicatorError& error) noexcept {
  std::lock_guard lock(mutex_);
  if (first_) return;
  first_ = error;
  raised_.store(true, std::memory_order_release);
  eventfd_write(event_.get(), 1);
}

void Alarm::spread(const CommunicatorError& error, const FailureRecord& record) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (claimed_ || first_) return;
    claimed_ = true;
  }
  // The others first: once this rank's own thread is free its process may end, and they would take
  // it for the one that failed.
  for (int fd : control_fds_) {
    // A connection carries nothing else, so a whole record fits its buffer; if not, the end of the
    // connection tells the peer.
    (void)!send(fd, &record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  const bool in_segment = segment_ != nullptr && *segment_;
  if (in_segment) {
    SegmentHeader& header = segment_->header();
    std::uint32_t none = 0;
    if (header.failed.compare_exchange_strong(none, 1)) {
      header.failure = record;
      header.failed.store(2, std::memory_order_seq_cst);
    }
  }
  keep(error);
  if (in_segment) segment_->wake_all();
}

void Alarm::check() {
  if (raised_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    throw CommunicatorError(*first_);
  }
  if (segment_ == nullptr || !*segment_) return;
  const SegmentHeader& header = segment_->header();
  const std::uint32_t failed = header.failed.load(std::memory_order_acquire);
  if (failed == 0) return;
  // State 1 lasts for a copy of 1 KiB, or for ever if the writer was killed in it: the waiting
  // loops come again, and the writer's death is noticed like any other.
  if (failed == 1) return;
  raise_from_peer(header.failure);
  std::lock_guard lock(mutex_);
  if (first_) throw CommunicatorError(*first_);
  throw to_error(header.failure);  // the watcher is just about to keep the same
}

void Alarm::mark_dead(int rank) noexcept {
  dead_[rank].store(true, std::memory_order_seq_cst);
  if (segment_ != nullptr && *segment_) segment_->wake_all();
}

}  // namespace af::local
