// SPDX-License-Identifier: Apache-2.0
// One operation on its way through NCCL, and the handle that Work holds.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "collectives/backend.h"
#include "collectives/cuda/runtime.h"

namespace af::nccl {

// Life: made (submit) -> launched (its kernel and the event after it are on the stream) -> done; or
// failed, at any point before done. Thread-safe.
class Task final : public WorkState {
 public:
  Task(const Operation& operation, std::int64_t sequence, int device);

  bool done() noexcept override;
  void wait(Stream stream) override;
  void synchronize() override;

  // For the backend:
  void launched();
  void fail(const CommunicatorError& error) noexcept;  // no effect once done
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Finds out whether the kernel is through; a failed task counts as finished.
  bool finished() noexcept;
  // True once everything before the operation is through, so that it can only wait for peers.
  bool began() noexcept;

  const Operation operation;
  const std::int64_t sequence;
  cuda::Event ready;  // on the caller's stream, at submission
  cuda::Event begin;  // on the communicator's stream, before the kernel
  cuda::Event end;    // after it
  std::optional<std::chrono::steady_clock::time_point> began_at;  // the watching thread's

 private:
  void wait_launched();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool launched_ = false;
  std::atomic<bool> failed_{false};
  std::atomic<bool> done_{false};
  std::unique_ptr<CommunicatorError> error_;
};

}  // namespace af::nccl
