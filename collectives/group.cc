// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

#include <optional>
#include <utility>
#include <vector>

namespace af {
namespace {

struct Batch {
  std::shared_ptr<void> owner;
  SubmitGroup submit;
  std::vector<Operation> operations;
  std::vector<std::shared_ptr<GroupedState>> states;
};

thread_local int depth = 0;
thread_local std::vector<Batch> batches;  // one per communicator, in order of first use

}  // namespace

bool GroupedState::done() noexcept {
  if (!bound_) return false;
  return error_ != nullptr || state_ == nullptr || state_->done();
}

WorkState* GroupedState::bound() const {
  if (error_) throw CommunicatorError(*error_);
  if (!bound_) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            "a Work of a group can be waited on after group_end() only");
  }
  return state_.get();
}

void GroupedState::wait(Stream stream) {
  if (WorkState* state = bound()) state->wait(stream);
}

void GroupedState::synchronize() {
  if (WorkState* state = bound()) state->synchronize();
}

void GroupedState::bind(std::shared_ptr<WorkState> state) {
  state_ = std::move(state);
  bound_ = true;
}

void GroupedState::fail(const CommunicatorError& error) {
  error_ = std::make_unique<CommunicatorError>(error);
  bound_ = true;
}

bool in_group() {
  return depth > 0;
}

std::shared_ptr<WorkState> add_to_group(const std::shared_ptr<void>& owner, SubmitGroup submit,
                                        const Operation& operation) {
  Batch* batch = nullptr;
  for (Batch& one : batches) {
    if (one.owner == owner) batch = &one;
  }
  if (batch == nullptr) batch = &batches.emplace_back(Batch{owner, submit, {}, {}});
  batch->operations.push_back(operation);
  return batch->states.emplace_back(std::make_shared<GroupedState>());
}

void group_begin() {
  ++depth;
}

void group_end() {
  if (depth == 0) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            "group_end() without group_begin()");
  }
  if (--depth > 0) return;
  std::optional<CommunicatorError> first;
  for (Batch& batch : std::exchange(batches, {})) {
    try {
      auto states = batch.submit(batch.owner.get(), batch.operations);
      for (std::size_t i = 0; i < batch.states.size(); ++i) {
        batch.states[i]->bind(std::move(states[i]));
      }
    } catch (const CommunicatorError& error) {
      // The other communicators' operations start all the same: their peers wait for them.
      for (const auto& state : batch.states) state->fail(error);
      if (!first) first = error;
    }
  }
  if (first) throw *first;
}

}  // namespace af
