// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes: spans of compute, communication and waiting for data, which a
// Profile (af/train/profile.h) writes for a few steps as a file for chrome://tracing or Perfetto.
//
//   {
//     af::train::TraceSpan span(af::train::TraceKind::compute, "forward");
//     loss = model->forward(x);
//   }
//
// The library marks what it does itself; a program adds what only it knows. While nothing is traced
// a span costs one load of a flag. Times are those of the host's thread: on a GPU, where kernels
// run behind it, they are the launches.
//
// Thread-safe; never throws. There is one trace in a process, as there is one rank in it.
#pragma once

#include <atomic>
#include <cstdint>

#include "af/export.h"

namespace af::train {

enum class TraceKind : uint8_t { compute, communication, data, other };

namespace detail {
AF_PUBLIC extern std::atomic<bool> tracing_on;
AF_PUBLIC void add_span(TraceKind kind, const char* name, int64_t begin, int64_t bytes) noexcept;
}  // namespace detail

inline bool tracing() noexcept {
  return detail::tracing_on.load(std::memory_order_relaxed);
}

// Nanoseconds of a monotonic clock, never 0.
AF_PUBLIC int64_t trace_now() noexcept;

// For what overlaps with the thread's own work, such as a reduction that runs beside backward():
// from `begin` to `end` of trace_now(), on a line of its own beside the threads. `name` is copied.
AF_PUBLIC void trace_add(TraceKind kind, const char* name, int64_t begin, int64_t end,
                         int64_t bytes = 0) noexcept;

// From its construction to its end, on the thread that made it. Spans of a thread nest.
class TraceSpan {
 public:
  // `name` must live as long as the span: a literal. `bytes`: what is moved, 0 if nothing is.
  explicit TraceSpan(TraceKind kind, const char* name, int64_t bytes = 0) noexcept
      : kind_(kind), name_(name), bytes_(bytes), begin_(tracing() ? trace_now() : 0) {}
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() { end(); }

  void end() noexcept {
    if (begin_ != 0) detail::add_span(kind_, name_, begin_, bytes_);
    begin_ = 0;
  }

 private:
  TraceKind kind_;
  const char* name_;
  int64_t bytes_;
  int64_t begin_;
};

}  // namespace af::train
