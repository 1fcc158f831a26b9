// SPDX-License-Identifier: Apache-2.0
#include "af/train/background_saver.h"

#include <ATen/Functions.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

using Clock = std::chrono::steady_clock;

// Host copies of tensors by their place in the state.
class Copies {
 public:
  State copy(const State& state, const std::string& where = "") {
    State result = make_state();
    for (const auto& entry : state) {
      const std::string& key = entry.key().toStringRef();
      const c10::IValue& value = entry.value();
      if (value.isTensor())
        result.insert(key, copy(value.toTensor().detach(), where + key));
      else if (value.isGenericDict())
        result.insert(key, copy(value.toGenericDict(), where + key + "/"));
      else
        result.insert(key, value);
    }
    return result;
  }

 private:
  at::Tensor copy(const at::Tensor& tensor, const std::string& where) {
    at::Tensor& kept = kept_[where];
    if (!kept.defined() || kept.sizes() != tensor.sizes() ||
        kept.scalar_type() != tensor.scalar_type())
      kept = at::empty(
          tensor.sizes(),
          at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.device().is_cuda()));
    return kept.copy_(tensor);
  }

  std::map<std::string, at::Tensor> kept_;
};

}  // namespace

struct BackgroundSaver::Impl {
  CheckpointDirectory directory;
  Saved saved;
  Copies copies;

  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false;  // `state` is being written, or about to be
  bool ending = false;
  std::exception_ptr failed;
  int64_t step = 0;
  State state = make_state();
  Clock::time_point begun;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return busy || ending; });
      if (!busy) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        const Checkpoint checkpoint = directory.save(
            step, [&](const std::filesystem::path& at) { write_state(at / "state.pt", state); });
        if (saved) saved(checkpoint, std::chrono::duration<double>(Clock::now() - begun).count());
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) failed = error;
      busy = false;
      changed.notify_all();
    }
  }

  void wait_and_report(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] { return !busy; });
    report();
  }

  void report() {
    if (failed) std::rethrow_exception(std::exchange(failed, nullptr));
  }
};

BackgroundSaver::BackgroundSaver(CheckpointDirectory directory, Saved saved)
    : impl_(new Impl{std::move(directory), std::move(saved)}) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

BackgroundSaver::~BackgroundSaver() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
    impl_->changed.notify_all();
  }
  impl_->thread.join();
  try {
    impl_->report();
  } catch (const std::exception& error) {
    warn_on_stderr(error.what());
  }
}

const CheckpointDirectory& BackgroundSaver::directory() const {
  return impl_->directory;
}

bool BackgroundSaver::save(int64_t step, const State& state, Busy busy) {
  std::unique_lock lock(impl_->mutex);
  if (impl_->busy && busy == Busy::skip) return false;
  impl_->wait_and_report(lock);
  impl_->begun = Clock::now();
  impl_->state = impl_->copies.copy(state);
  impl_->step = step;
  impl_->busy = true;
  impl_->changed.notify_all();
  return true;
}

void BackgroundSaver::flush() {
  std::unique_lock lock(impl_->mutex);
  impl_->wait_and_report(lock);
}

}  // namespace af::train
