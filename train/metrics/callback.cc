// SPDX-License-Identifier: Apache-2.0
#include "af/train/callback.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <typeinfo>
#include <utility>

namespace af::train {

Callback::~Callback() = default;

std::string Callback::name() const {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), &std::free);
  return readable ? readable.get() : typeid(*this).name();
}

struct Callbacks::Impl {
  // Recursive: a callback may report.
  mutable std::recursive_mutex mutex;
  std::vector<std::shared_ptr<Callback>> all;
  bool stop_asked = false;
  std::string stop_reason;

  // By index, on the list as it was: one that reports makes this run within itself.
  template <typename Call>
  void each(const char* event, Call&& call) {
    const std::lock_guard lock(mutex);
    const auto present = all;
    for (const auto& callback : present) {
      if (std::find(all.begin(), all.end(), callback) == all.end()) continue;
      try {
        call(*callback);
      } catch (const StopTraining& stop) {
        if (!stop_asked) stop_reason = stop.what();
        stop_asked = true;
      } catch (const std::exception& error) {
        remove(callback, event, error.what());
      } catch (...) {
        remove(callback, event, "an exception of an unknown type");
      }
    }
  }

  void remove(const std::shared_ptr<Callback>& callback, const char* event, const char* why) {
    std::fprintf(stderr, "af: callback %s: %s: %s; the training goes on without it\n",
                 callback->name().c_str(), event, why);
    all.erase(std::remove(all.begin(), all.end(), callback), all.end());
  }
};

Callbacks::Callbacks() : impl_(std::make_unique<Impl>()) {}
Callbacks::~Callbacks() = default;

void Callbacks::add(std::shared_ptr<Callback> callback) {
  const std::lock_guard lock(impl_->mutex);
  if (callback) impl_->all.push_back(std::move(callback));
}

bool Callbacks::empty() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->all.empty();
}

void Callbacks::start(const StartInfo& info) {
  impl_->each("on_start", [&](Callback& one) { one.on_start(info); });
}
void Callbacks::step(const StepInfo& info) {
  impl_->each("on_step", [&](Callback& one) { one.on_step(info); });
}
void Callbacks::epoch(const EpochInfo& info) {
  impl_->each("on_epoch", [&](Callback& one) { one.on_epoch(info); });
}
void Callbacks::report(const ReportInfo& info) {
  impl_->each("on_report", [&](Callback& one) { one.on_report(info); });
}
void Callbacks::checkpoint(const CheckpointInfo& info) {
  impl_->each("on_checkpoint", [&](Callback& one) { one.on_checkpoint(info); });
}
void Callbacks::world_change(const WorldChangeInfo& info) {
  impl_->each("on_world_change", [&](Callback& one) { one.on_world_change(info); });
}
void Callbacks::end(const EndInfo& info) {
  impl_->each("on_end", [&](Callback& one) { one.on_end(info); });
}
void Callbacks::exception(const std::string& what) {
  impl_->each("on_exception", [&](Callback& one) { one.on_exception(what); });
}

bool Callbacks::stop_asked() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stop_asked;
}

std::string Callbacks::stop_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stop_reason;
}

bool Callbacks::stop_agreed(
    const std::function<std::vector<double>(std::vector<double>)>& sum) const {
  return sum({stop_asked() ? 1.0 : 0.0}).at(0) > 0;
}

}  // namespace af::train
