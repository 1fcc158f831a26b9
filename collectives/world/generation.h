// SPDX-License-Identifier: Apache-2.0
// One world of a run, as one rank has it: what is asked of it, and its communicator.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "af/world.h"
#include "collectives/cancel.h"

namespace af {

// What the agent asks for and what the ranks have agreed on. Plain values.
class Wishes {
 public:
  // A change at the next step outranks one that waits for a checkpoint.
  void ask_change(bool at_checkpoint);
  void ask_save() { save_asked_ = true; }
  bool save_asked() const { return save_asked_; }
  WorldFlags flags(bool at_checkpoint) const;
  void agree(bool change, bool save);
  bool change_agreed() const { return change_agreed_; }
  bool save_agreed() const { return save_agreed_; }

 private:
  enum class Change { none, checkpoint, step };
  Change change_asked_ = Change::none;
  bool save_asked_ = false;
  bool change_agreed_ = false;
  bool save_agreed_ = false;
};

class Generation {
 public:
  explicit Generation(WorldView view) : view_(std::move(view)) {}

  const WorldView& view() const { return view_; }
  const std::shared_ptr<Cancel>& cancel() const { return cancel_; }

  // By one thread at a time. Forms it at the first call; a failure to do so is final, since half of
  // what this rank has said of itself in the store is no longer true.
  Communicator& communicator(const Options& options);
  // Any thread, also while it is being formed: frees who is blocked in it, for good.
  void abort(const std::string& why) noexcept;
  // Destroys it; waits for an abort() under way.
  void drop();

 private:
  const WorldView view_;
  const std::shared_ptr<Cancel> cancel_ = std::make_shared<Cancel>();
  std::mutex mutex_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<CommunicatorError> failure_;
};

}  // namespace af
