// SPDX-License-Identifier: Apache-2.0
#include "collectives/cancel.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "af/communicator.h"

namespace af {

Cancel::Cancel() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) {
    throw CommunicatorError(CommunicatorError::Kind::system,
                            std::string("cannot make an eventfd: ") + std::strerror(errno));
  }
}

void Cancel::raise(const std::string& why) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return;
    try {
      why_ = why;
    } catch (...) {
      why_.clear();  // out of memory: the fact remains
    }
    raised_.store(true, std::memory_order_release);
  }
  eventfd_write(event_.get(), 1);
}

std::string Cancel::why() const {
  std::lock_guard lock(mutex_);
  return why_;
}

void Cancel::check() const {
  if (raised()) throw CommunicatorError(CommunicatorError::Kind::aborted, why());
}

}  // namespace af
