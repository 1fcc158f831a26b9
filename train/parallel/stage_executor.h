// SPDX-License-Identifier: Apache-2.0
// The thread of a pipeline's stage.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace af::train {

// start() and wait() from one thread, in turn.
class StageExecutor {
 public:
  StageExecutor();
  ~StageExecutor();  // waits for the work in progress
  StageExecutor(const StageExecutor&) = delete;
  StageExecutor& operator=(const StageExecutor&) = delete;

  // `work` must not throw.
  void start(std::function<void()> work);
  // Until the work is done and destroyed, with all that it holds.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool ending_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace af::train
