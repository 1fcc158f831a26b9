// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "train/metrics/trace.h"

namespace af::train {
namespace {

const char* category(TraceKind kind) {
  switch (kind) {
    case TraceKind::compute:
      return "compute";
    case TraceKind::communication:
      return "communication";
    case TraceKind::data:
      return "data";
    case TraceKind::other:
      break;
  }
  return "other";
}

// "replace": a name need not be UTF-8, and dump() would throw.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// In digits: as a double, today's microseconds would lose the last of them.
std::string microseconds(int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

class Writer {
 public:
  explicit Writer(const TraceOrigin& origin) : origin_(origin) {}

  void metadata(const char* what, pid_t thread, const std::string& name) {
    line(fmt::format(R"("name":"{}","ph":"M","tid":{},"args":{{"name":{}}})", what, thread,
                     quoted(name)));
  }

  void event(const TraceEvent& event) {
    const std::string begin = microseconds(event.begin + origin_.clock_offset);
    const std::string args =
        event.bytes > 0 ? fmt::format(R"(,"args":{{"bytes":{}}})", event.bytes) : "";
    const std::string common =
        fmt::format(R"("name":{},"cat":"{}")", quoted(event.name), category(event.kind));
    if (event.thread != 0) {
      line(fmt::format(R"({},"ph":"X","tid":{},"ts":{},"dur":{}{})", common, event.thread, begin,
                       microseconds(event.end - event.begin), args));
      return;
    }
    // The pair is found by category and id, within the process.
    const int id = ++last_id_;
    line(fmt::format(R"({},"ph":"b","id":{},"tid":0,"ts":{}{})", common, id, begin, args));
    line(fmt::format(R"({},"ph":"e","id":{},"tid":0,"ts":{})", common, id,
                     microseconds(event.end + origin_.clock_offset)));
  }

  std::string finish(int64_t dropped) && {
    return text_ +
           fmt::format(
               "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"host\":{},\"dropped\":{}}}}}\n",
               quoted(origin_.host), dropped);
  }

 private:
  void line(const std::string& fields) {
    text_ += fmt::format("{}\n{{\"pid\":{},{}}}", first_ ? "" : ",", origin_.rank, fields);
    first_ = false;
  }

  const TraceOrigin& origin_;
  std::string text_ = "{\"traceEvents\":[";
  bool first_ = true;
  int last_id_ = 0;
};

}  // namespace

std::string to_chrome_json(const Trace& trace, const TraceOrigin& origin) {
  Writer writer(origin);
  writer.metadata("process_name", 0, fmt::format("rank {} on {}", origin.rank, origin.host));
  for (const auto& [thread, name] : trace.threads) writer.metadata("thread_name", thread, name);
  for (const TraceEvent& event : trace.events) writer.event(event);
  return std::move(writer).finish(trace.dropped);
}

}  // namespace af::train
