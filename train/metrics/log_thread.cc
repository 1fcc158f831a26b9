// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/log_thread.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace af::train {

LogThread::LogThread(Options options, std::function<void(const std::vector<LogRecord>&)> write)
    : options_(std::move(options)), write_(std::move(write)), thread_([this] { run(); }) {}

LogThread::~LogThread() {
  finish();
}

void LogThread::push(LogRecord record) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    if (queue_.size() >= options_.most_records) {
      ++lost_;
      return;
    }
    queue_.push_back(std::move(record));
  }
  wake_.notify_one();
}

void LogThread::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (!ending_) deadline_ = std::chrono::steady_clock::now() + options_.patience;
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LogThread::run() {
  ::pthread_setname_np(::pthread_self(), "af log");
  bool said = false;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const std::vector<LogRecord> batch(queue_.begin(), queue_.end());
    lock.unlock();
    std::string failure;
    try {
      write_(batch);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (failure.empty()) {
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(batch.size()));
      continue;
    }
    if (!std::exchange(said, true))
      std::fprintf(stderr, "af: %s: %s; tried again while the training goes on\n",
                   options_.name.c_str(), failure.c_str());
    const auto now = std::chrono::steady_clock::now();
    if (ending_ && now >= deadline_) break;
    // While it ends, more often: somebody waits.
    const bool was_ending = ending_;
    const auto pause =
        was_ending ? std::min(options_.retry, std::chrono::milliseconds(200)) : options_.retry;
    wake_.wait_for(lock, pause, [&] { return ending_ && !was_ending; });
  }
  lost_ += queue_.size();
  if (lost_ > 0)
    std::fprintf(stderr, "af: %s: %zu reports were lost\n", options_.name.c_str(), lost_);
}

}  // namespace af::train
