// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/trace.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace af::train {
namespace {

using nlohmann::json;

TEST(Trace, NothingIsRecordedWhileItIsOff) {
  { const TraceSpan span(TraceKind::compute, "forward"); }
  trace_add(TraceKind::communication, "all_reduce", 1, 2);
  start_tracing();
  EXPECT_TRUE(stop_tracing().events.empty());
}

TEST(Trace, ASpanThatBeganBeforeOrEndsBehindIsLeftOut) {
  auto before = std::make_unique<TraceSpan>(TraceKind::compute, "before");
  start_tracing();
  before.reset();
  auto behind = std::make_unique<TraceSpan>(TraceKind::compute, "behind");
  EXPECT_TRUE(stop_tracing().events.empty());
  behind.reset();
  start_tracing();
  EXPECT_TRUE(stop_tracing().events.empty());
}

TEST(Trace, SpansNestOnTheirThreads) {
  start_tracing();
  const int64_t begin = trace_now();
  {
    const TraceSpan step(TraceKind::other, "step");
    TraceSpan forward(TraceKind::compute, "forward");
    forward.end();
    forward.end();  // once is enough
    std::thread([] {
      ::pthread_setname_np(::pthread_self(), "loader");
      const TraceSpan read(TraceKind::data, "read", 4096);
    }).join();
  }
  trace_add(TraceKind::communication, "all_reduce", begin, begin + 1500, 1024);
  const Trace trace = stop_tracing();
  ASSERT_EQ(trace.events.size(), 4U);
  const auto& [forward, read, step, reduced] =
      std::tie(trace.events[0], trace.events[1], trace.events[2], trace.events[3]);
  EXPECT_EQ(forward.name, "forward");
  EXPECT_EQ(step.name, "step");
  EXPECT_LE(begin, step.begin);
  EXPECT_LE(step.begin, forward.begin);
  EXPECT_LE(forward.begin, forward.end);
  EXPECT_LE(forward.end, read.begin);
  EXPECT_LE(read.end, step.end);
  EXPECT_EQ(step.thread, ::gettid());
  EXPECT_NE(read.thread, step.thread);
  EXPECT_EQ(trace.threads.at(read.thread), "loader");
  EXPECT_EQ(trace.threads.at(step.thread), "training");
  EXPECT_EQ(read.bytes, 4096);
  EXPECT_EQ(reduced.thread, 0);
  EXPECT_EQ(reduced.end - reduced.begin, 1500);
}

TEST(Trace, BeyondTheLimitSpansAreCounted) {
  start_tracing();
  for (std::size_t i = 0; i < kMostTraceEvents + 3; ++i) trace_add(TraceKind::other, "x", 1, 2);
  const Trace trace = stop_tracing();
  EXPECT_EQ(trace.events.size(), kMostTraceEvents);
  EXPECT_EQ(trace.dropped, 3);
}

TEST(ChromeTrace, IsTheFormatsJson) {
  Trace trace;
  trace.threads[77] = "training";
  trace.events.push_back({TraceKind::compute, "a \"b\"\n\xff", 1'000'001, 1'003'501, 0, 77});
  trace.events.push_back({TraceKind::communication, "all_reduce", 1'000'500, 1'002'000, 4096, 0});
  trace.events.push_back({TraceKind::communication, "all_reduce", 1'001'000, 1'003'000, 4096, 0});
  trace.events.push_back({TraceKind::data, "next", 999'000, 999'000, 0, 77});
  trace.dropped = 2;
  const int64_t offset = 1'700'000'000'000'000'000;
  const std::string text = to_chrome_json(trace, {3, "gpu-7", offset});
  EXPECT_NE(text.find("\"ts\":1700000000001000.001"), std::string::npos) << text;

  const json file = json::parse(text);
  EXPECT_EQ(file["otherData"], json::parse(R"({"host":"gpu-7","dropped":2})"));
  const json& events = file["traceEvents"];
  ASSERT_EQ(events.size(), 8U);
  for (const json& event : events) EXPECT_EQ(event["pid"], 3);
  EXPECT_EQ(events[0]["args"]["name"], "rank 3 on gpu-7");
  EXPECT_EQ(events[1], json::parse(R"({"pid":3,"name":"thread_name","ph":"M","tid":77,
                                       "args":{"name":"training"}})"));
  EXPECT_EQ(events[2]["ph"], "X");
  EXPECT_EQ(events[2]["cat"], "compute");
  EXPECT_EQ(events[2]["name"], "a \"b\"\n\xef\xbf\xbd");
  EXPECT_EQ(events[2]["dur"], 3.5);
  EXPECT_FALSE(events[2].contains("args"));
  // Two that overlap: each has a begin and an end of the same id.
  EXPECT_EQ(events[3]["ph"], "b");
  EXPECT_EQ(events[3]["args"]["bytes"], 4096);
  EXPECT_EQ(events[4]["ph"], "e");
  EXPECT_EQ(events[4]["id"], events[3]["id"]);
  EXPECT_NEAR(events[4]["ts"].get<double>() - events[3]["ts"].get<double>(), 1.5, 0.3);
  EXPECT_NE(events[5]["id"], events[3]["id"]);
  EXPECT_EQ(events[7]["dur"], 0.0);
}

}  // namespace
}  // namespace af::train
