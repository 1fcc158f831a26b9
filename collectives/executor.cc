// SPDX-License-Identifier: Apache-2.0
#include "collectives/executor.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace af {
namespace {

// As the kernel has it; its header and glibc's <sched.h> exclude each other before glibc 2.41.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;  // ns; for SCHED_OTHER the length of a slice
  std::uint64_t deadline;
  std::uint64_t period;
};

// The thread works for some microseconds at a time and then waits for the network. Where computing
// threads fill all cores it would have to wait for the rest of their slices, milliseconds, each
// time. One who asks for a short slice gets it early (Linux 6.12, EEVDF), and no more of it in all.
// Older kernels ignore the wish.
void ask_for_short_slices() {
  SchedulingAttributes attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = 100'000;  // ns, the least that is taken
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

thread_local bool is_own_thread = false;

}  // namespace

bool is_progress_thread() noexcept {
  return is_own_thread;
}

class Executor::Task : public WorkState {
 public:
  Task(std::shared_ptr<Executor> executor, const Job& work)
      : job(work), executor_(std::move(executor)) {}

  bool done() noexcept override { return finished.load(std::memory_order_acquire); }
  // Host memory has no stream to wait on.
  void wait(Stream) override { synchronize(); }
  void synchronize() override {
    std::unique_lock lock(executor_->mutex_);
    while (!done()) {
      // Whoever waits helps: that saves the change of threads if the progress thread is not awake.
      if (!executor_->run_next(lock)) executor_->changed_.wait(lock);
    }
    if (error) throw CommunicatorError(*error);
  }

  const Job job;
  std::unique_ptr<CommunicatorError> error;  // guarded by the executor's mutex
  std::atomic<bool> finished{false};

 private:
  const std::shared_ptr<Executor> executor_;
};

Executor::Executor(std::function<void(const Job&)> run) : run_(std::move(run)) {}

Executor::~Executor() {
  stop();
}

std::shared_ptr<WorkState> Executor::submit(const Job& job, Place place) {
  std::unique_lock lock(mutex_);
  throw_if_broken();
  const bool idle = !running_ && queue_.empty();
  if (place == Place::caller || (place == Place::either && idle)) {
    take_turn(lock);
    run_guarded(lock, [&] { run_(job); });
    return nullptr;
  }
  auto task = std::make_shared<Task>(shared_from_this(), job);
  queue_.push_back(task);
  if (!thread_.joinable()) start_thread();
  changed_.notify_all();
  return task;
}

void Executor::exclusively(const std::function<void()>& body) {
  std::unique_lock lock(mutex_);
  throw_if_broken();
  take_turn(lock);
  run_guarded(lock, body);
}

// Waits until nothing is in flight, helping; then running_ is this thread's.
void Executor::take_turn(std::unique_lock<std::mutex>& lock) {
  while (running_ || !queue_.empty()) {
    if (!run_next(lock)) changed_.wait(lock);
  }
  throw_if_broken();
  running_ = true;
}

void Executor::end_turn() noexcept {
  running_ = false;
  changed_.notify_all();
}

void Executor::run_guarded(std::unique_lock<std::mutex>& lock, const std::function<void()>& body) {
  lock.unlock();
  try {
    body();
  } catch (const CommunicatorError& error) {
    lock.lock();
    break_with(error);
    end_turn();
    throw;
  } catch (const std::exception& error) {
    const CommunicatorError system(CommunicatorError::Kind::system, error.what());
    lock.lock();
    break_with(system);
    end_turn();
    throw system;
  }
  lock.lock();
  end_turn();
}

bool Executor::run_next(std::unique_lock<std::mutex>& lock) noexcept {
  if (running_ || queue_.empty()) return false;
  const auto task = queue_.front();
  queue_.pop_front();
  running_ = true;
  try {
    run_guarded(lock, [&] { run_(task->job); });
  } catch (const CommunicatorError& error) {
    task->error = std::make_unique<CommunicatorError>(error);
  }
  task->finished.store(true, std::memory_order_release);
  changed_.notify_all();
  return true;
}

void Executor::throw_if_broken() {
  if (broken_) throw CommunicatorError(*broken_);
}

void Executor::fail(const CommunicatorError& error) noexcept {
  std::lock_guard lock(mutex_);
  break_with(error);
}

void Executor::break_with(const CommunicatorError& error) noexcept {
  if (!broken_) broken_ = std::make_unique<CommunicatorError>(error);
  for (const auto& task : queue_) {
    task->error = std::make_unique<CommunicatorError>(*broken_);
    task->finished.store(true, std::memory_order_release);
  }
  queue_.clear();
  changed_.notify_all();
}

void Executor::stop() noexcept {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  break_with(CommunicatorError(CommunicatorError::Kind::aborted, "the communicator was closed"));
  changed_.wait(lock, [this] { return !running_; });
  lock.unlock();
  if (thread_.joinable()) thread_.join();
}

void Executor::start_thread() {
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { progress(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Executor::progress() {
  pthread_setname_np(pthread_self(), "af-progress");
  is_own_thread = true;
  ask_for_short_slices();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!run_next(lock)) changed_.wait(lock);
  }
}

}  // namespace af
