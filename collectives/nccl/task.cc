// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/task.h"

#include <sched.h>

#include <thread>

namespace af::nccl {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// Events belong to the device that is current when they are made: the caller holds a DeviceGuard.
Task::Task(const Operation& o, std::int64_t s, int device)
    : operation(o), sequence(s), device_(device) {
  ready.record(static_cast<cudaStream_t>(o.stream));
}

void Task::launched() {
  std::lock_guard lock(mutex_);
  launched_ = true;
  changed_.notify_all();
}

void Task::fail(const CommunicatorError& error) noexcept {
  std::lock_guard lock(mutex_);
  if (done_ || failed_) return;
  error_ = std::make_unique<CommunicatorError>(error);
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

bool Task::finished() noexcept {
  std::lock_guard lock(mutex_);
  if (done_ || failed_) return true;
  if (!launched_) return false;
  try {
    // Asked under the lock: after an abort NCCL's kernels end as well, and what was failed before
    // must not turn into a success by that.
    if (end.reached()) done_ = true;
  } catch (const CommunicatorError& error) {
    error_ = std::make_unique<CommunicatorError>(error);
    failed_.store(true, std::memory_order_release);
  }
  return done_ || failed_;
}

bool Task::began() noexcept {
  std::lock_guard lock(mutex_);
  try {
    return launched_ && begin.reached();
  } catch (const CommunicatorError&) {
    return true;  // finished() reports it
  }
}

bool Task::done() noexcept {
  return finished();
}

void Task::wait_launched() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return launched_ || done_ || failed_; });
  if (error_) throw CommunicatorError(*error_);
}

void Task::wait(Stream stream) {
  wait_launched();
  cuda::DeviceGuard guard(device_);
  AF_CUDA(stream_wait_event(static_cast<cudaStream_t>(stream), end.get(), 0));
}

// The backend's thread watches the deadline and fails this task; here it is enough to look.
void Task::synchronize() {
  wait_launched();
  const auto start = steady_clock::now();
  while (!finished()) {
    const auto waited = steady_clock::now() - start;
    if (waited > microseconds(500)) {
      std::this_thread::sleep_for(microseconds(20));
    } else if (waited > microseconds(20)) {
      sched_yield();
    }
  }
  std::lock_guard lock(mutex_);
  if (error_) throw CommunicatorError(*error_);
}

}  // namespace af::nccl
