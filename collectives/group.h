// SPDX-License-Identifier: Apache-2.0
// Operations that wait for group_end(), per thread.
#pragma once

#include <functional>
#include <memory>

#include "collectives/backend.h"

namespace af {

// The state behind a Work of a group: empty until the group ends.
class GroupedState : public WorkState {
 public:
  bool done() noexcept override;
  void wait(Stream stream) override;
  void synchronize() override;
  // At group_end(): the true state, or why there is none. A null state is done.
  void bind(std::shared_ptr<WorkState> state);
  void fail(const CommunicatorError& error);

 private:
  WorkState* bound() const;  // throws if the group has not ended or the start failed

  bool bound_ = false;
  std::shared_ptr<WorkState> state_;
  std::unique_ptr<CommunicatorError> error_;
};

bool in_group();
// Keeps the operation of a communicator until the group ends; `submit` starts several of one
// communicator at once. Communicators are told apart by `owner`, which is kept alive.
using SubmitGroup = std::vector<std::shared_ptr<WorkState>> (*)(void* owner,
                                                                std::span<const Operation>);
std::shared_ptr<WorkState> add_to_group(const std::shared_ptr<void>& owner, SubmitGroup submit,
                                        const Operation& operation);

}  // namespace af
