// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <utility>

namespace af::train {

std::atomic<bool> detail::tracing_on{false};

namespace {

struct Recorder {
  std::mutex mutex;
  Trace trace;
};

// Never destroyed: threads may end a span while the process ends.
Recorder& recorder() {
  static auto* one = new Recorder;
  return *one;
}

std::string name_of_this_thread(pid_t thread) {
  if (thread == ::getpid()) return "training";
  char name[16] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof name);
  return name;
}

void add(TraceEvent event) {
  Recorder& to = recorder();
  const std::lock_guard lock(to.mutex);
  if (!tracing()) return;  // ended meanwhile
  if (to.trace.events.size() >= kMostTraceEvents) {
    ++to.trace.dropped;
    return;
  }
  if (event.thread != 0 && !to.trace.threads.contains(event.thread))
    to.trace.threads.emplace(event.thread, name_of_this_thread(event.thread));
  to.trace.events.push_back(std::move(event));
}

}  // namespace

int64_t trace_now() noexcept {
  using std::chrono::nanoseconds;
  using std::chrono::steady_clock;
  return std::chrono::duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

void detail::add_span(TraceKind kind, const char* name, int64_t begin, int64_t bytes) noexcept {
  thread_local const pid_t thread = ::gettid();
  try {
    add({kind, name, begin, trace_now(), bytes, thread});
  } catch (const std::exception&) {  // no memory for a profile is no reason to end a training
  }
}

void trace_add(TraceKind kind, const char* name, int64_t begin, int64_t end,
               int64_t bytes) noexcept {
  if (!tracing()) return;
  try {
    add({kind, name, begin, end, bytes, 0});
  } catch (const std::exception&) {
  }
}

void start_tracing() {
  const std::lock_guard lock(recorder().mutex);
  recorder().trace = {};
  detail::tracing_on = true;
}

Trace stop_tracing() {
  const std::lock_guard lock(recorder().mutex);
  detail::tracing_on = false;
  return std::exchange(recorder().trace, {});
}

}  // namespace af::train
