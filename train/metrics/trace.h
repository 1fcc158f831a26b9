// SPDX-License-Identifier: Apache-2.0
// The recorder behind af/train/trace.h, and the text of a Chrome trace.
// The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
// ("Trace Event Format"): complete events "X" for what nests on a thread, asynchronous ones "b" and
// "e" for what overlaps.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "af/train/trace.h"

namespace af::train {

struct TraceEvent {
  TraceKind kind = TraceKind::other;
  std::string name;
  int64_t begin = 0;  // ns of trace_now()
  int64_t end = 0;
  int64_t bytes = 0;
  pid_t thread = 0;  // 0: overlaps, on no thread's line
};

// Begins with nothing recorded.
void start_tracing();

struct Trace {
  std::vector<TraceEvent> events;        // in the order in which they ended
  std::map<pid_t, std::string> threads;  // their names
  int64_t dropped = 0;                   // beyond kMostTraceEvents
};
// Ends, and hands over what was recorded.
Trace stop_tracing();

// A trace of a step has hundreds; so many are some 100 MB.
constexpr std::size_t kMostTraceEvents = 1'000'000;

struct TraceOrigin {
  int rank = 0;
  std::string host;
  // Unix time in ns minus trace_now(), at one moment: so files of several hosts lie on one time
  // axis, as well as their clocks agree.
  int64_t clock_offset = 0;
};
// Pure. Times in µs with three decimals.
std::string to_chrome_json(const Trace& trace, const TraceOrigin& origin);

}  // namespace af::train
