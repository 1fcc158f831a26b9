// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/stage_executor.h"

#include <csignal>
#include <utility>

namespace af::train {

StageExecutor::StageExecutor() {
  // Signals are for the program's own threads: a handler or sigwait() there must not miss one.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StageExecutor::~StageExecutor() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StageExecutor::start(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  changed_.notify_all();
}

void StageExecutor::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
}

void StageExecutor::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return work_ || ending_; });
    if (!work_) return;
    lock.unlock();
    work_();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace af::train
