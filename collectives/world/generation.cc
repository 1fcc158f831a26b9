// SPDX-License-Identifier: Apache-2.0
#include "collectives/world/generation.h"

namespace af {

void Wishes::ask_change(bool at_checkpoint) {
  if (!at_checkpoint) {
    change_asked_ = Change::step;
  } else if (change_asked_ == Change::none) {
    change_asked_ = Change::checkpoint;
  }
}

WorldFlags Wishes::flags(bool at_checkpoint) const {
  const bool due =
      change_asked_ == Change::step || (change_asked_ == Change::checkpoint && at_checkpoint);
  return {due && !change_agreed_, save_asked_ && !save_agreed_};
}

void Wishes::agree(bool change, bool save) {
  change_agreed_ = change_agreed_ || change;
  save_agreed_ = save_agreed_ || save;
}

Communicator& Generation::communicator(const Options& options) {
  {
    std::lock_guard lock(mutex_);
    if (communicator_ != nullptr) return *communicator_;
    if (failure_) throw CommunicatorError(*failure_);
  }
  std::unique_ptr<Communicator> formed;
  try {
    cancel_->check();
    Options own = options;
    own.cancel = cancel_;
    formed = std::make_unique<Communicator>(own);
  } catch (const CommunicatorError& error) {
    std::lock_guard lock(mutex_);
    failure_ = error;
    throw;
  }
  std::lock_guard lock(mutex_);
  communicator_ = std::move(formed);
  // An abort() that came too early for the communicator finds it here.
  if (cancel_->raised()) communicator_->abort(cancel_->why());
  return *communicator_;
}

void Generation::abort(const std::string& why) noexcept {
  cancel_->raise(why);
  std::lock_guard lock(mutex_);
  if (communicator_ != nullptr) communicator_->abort(why);
}

void Generation::drop() {
  std::unique_ptr<Communicator> old;
  {
    std::lock_guard lock(mutex_);
    old = std::move(communicator_);
  }
  // The thread of an abort() may not have come to it yet. A communicator that goes without it would
  // leave its buffers shared with ranks of a world that is lost.
  if (old != nullptr && cancel_->raised()) old->abort(cancel_->why());
}

}  // namespace af
