// SPDX-License-Identifier: Apache-2.0
// The thread of a logger: takes reports without making the training wait, and writes them behind
// it. What cannot be written is tried again; what does not fit into the queue meanwhile is lost,
// and counted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "train/metrics/log_record.h"

namespace af::train {

// Thread-safe.
class LogThread {
 public:
  struct Options {
    std::string name;  // for messages: "TensorBoard"
    std::size_t most_records = 10'000;
    std::chrono::milliseconds retry = std::chrono::seconds(5);
    // How long the end waits for what is not written yet.
    std::chrono::milliseconds patience = std::chrono::seconds(10);
  };
  // `write` gets records in order, all of which are written when it returns and none if it throws.
  LogThread(Options options, std::function<void(const std::vector<LogRecord>&)> write);
  ~LogThread();  // as finish()

  // Never blocks for longer than a lock is held.
  void push(LogRecord record);
  // Until all is written, or patience is over. Then what is left is lost and said in a line.
  void finish();

 private:
  void run();

  const Options options_;
  const std::function<void(const std::vector<LogRecord>&)> write_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<LogRecord> queue_;
  std::size_t lost_ = 0;
  bool ending_ = false;
  std::chrono::steady_clock::time_point deadline_;
  std::thread thread_;
};

}  // namespace af::train
