// SPDX-License-Identifier: Apache-2.0
// Ends the forming of one communicator from another thread, and the communicator itself. Each
// world of a run has its own, so that a late word about an old one cannot reach the next.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "common/unique_fd.h"

namespace af {

class Cancel {
 public:
  Cancel();  // throws CommunicatorError (system)

  // Any thread; the first reason stays.
  void raise(const std::string& why) noexcept;
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  std::string why() const;
  // Throws CommunicatorError (aborted) if raised.
  void check() const;
  // Readable from raise() on; for poll().
  int event() const { return event_.get(); }

 private:
  UniqueFd event_;
  mutable std::mutex mutex_;
  std::string why_;
  std::atomic<bool> raised_{false};
};

// For poll(): of a Cancel that may be missing.
inline int event_of(const Cancel* cancel) {
  return cancel == nullptr ? -1 : cancel->event();
}
inline void check_cancel(const Cancel* cancel) {
  if (cancel != nullptr) cancel->check();
}

}  // namespace af
