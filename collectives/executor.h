// SPDX-License-Identifier: Apache-2.0
// Runs blocking operations one at a time, in the order of their submission: on the caller, on the
// thread that waits for them, or on a progress thread, whoever comes first.
//
// Held by shared_ptr: a Work may outlive its communicator.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/backend.h"

namespace af {

// The calling thread is an executor's own, beside which the program computes.
bool is_progress_thread() noexcept;

class Executor : public std::enable_shared_from_this<Executor> {
 public:
  struct Job {
    Operation operation;
    std::shared_ptr<void> mark;  // DeviceStaging's, null for host memory
  };
  // `run` executes one job and throws CommunicatorError; the executor is broken then and does not
  // call it again.
  explicit Executor(std::function<void(const Job&)> run);
  ~Executor();

  enum class Place {
    caller,    // here and now, after what was submitted before
    either,    // here if nothing else is in flight, else later
    progress,  // not here
  };
  // Null if the operation is done. Throws what broke the executor, earlier or now.
  std::shared_ptr<WorkState> submit(const Job& job, Place place);
  // Runs `body` like an operation, after all that were submitted before.
  void exclusively(const std::function<void()>& body);
  void throw_if_broken();
  // Fails what waits in the queue; the operation that runs now is not touched.
  void fail(const CommunicatorError& error) noexcept;
  // Fails what waits, and returns once nothing runs and the thread has gone. `run` is not called
  // after that.
  void stop() noexcept;

 private:
  class Task;

  void run_guarded(std::unique_lock<std::mutex>& lock, const std::function<void()>& body);
  void take_turn(std::unique_lock<std::mutex>& lock);
  void end_turn() noexcept;
  bool run_next(std::unique_lock<std::mutex>& lock) noexcept;
  void break_with(const CommunicatorError& error) noexcept;
  void start_thread();
  void progress();

  const std::function<void(const Job&)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> queue_;  // in order of submission
  bool running_ = false;                     // some thread is in run_
  bool stopping_ = false;
  std::unique_ptr<CommunicatorError> broken_;  // the first failure
  std::thread thread_;                         // from the first operation that needs it
};

}  // namespace af
