// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/log_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <vector>

namespace af::train {
namespace {

using std::chrono::milliseconds;

LogThread::Options options(std::size_t most = 100) {
  return {"the test's", most, milliseconds(1), milliseconds(10'000)};
}

std::vector<int64_t> steps_of(const std::vector<LogRecord>& records) {
  std::vector<int64_t> steps;
  for (const LogRecord& one : records) steps.push_back(one.step);
  return steps;
}

TEST(LogThread, WritesInOrderWhatItCouldNotWriteAtFirst) {
  std::vector<int64_t> written;
  int attempts = 0;
  testing::internal::CaptureStderr();
  {
    LogThread log(options(), [&](const std::vector<LogRecord>& records) {
      if (++attempts < 4) throw std::runtime_error("no space left");
      for (const int64_t step : steps_of(records)) written.push_back(step);
    });
    for (int64_t step = 0; step < 50; ++step) log.push({0, step});
  }
  std::vector<int64_t> all(50);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = int64_t(i);
  EXPECT_EQ(written, all);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("the test's: no space left"), std::string::npos) << said;
}

TEST(LogThread, AWriterThatHangsCostsReportsButNobodyWaits) {
  std::promise<void> begun;
  std::promise<void> go_on;
  std::vector<int64_t> written;
  testing::internal::CaptureStderr();
  {
    LogThread log(options(10), [&, first = true](const std::vector<LogRecord>& records) mutable {
      if (std::exchange(first, false)) {
        begun.set_value();
        go_on.get_future().wait();
      }
      for (const int64_t step : steps_of(records)) written.push_back(step);
    });
    log.push({0, 0});
    begun.get_future().wait();
    for (int64_t step = 1; step < 30; ++step) log.push({0, step});
    go_on.set_value();
  }
  EXPECT_EQ(written, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("20 reports were lost"), std::string::npos);
}

TEST(LogThread, TheEndDoesNotWaitForEver) {
  LogThread::Options impatient = options();
  impatient.patience = milliseconds(20);
  testing::internal::CaptureStderr();
  {
    LogThread log(impatient, [](const std::vector<LogRecord>&) {
      throw std::runtime_error("no such directory");
    });
    log.push({});
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("1 reports were lost"), std::string::npos);
}

}  // namespace
}  // namespace af::train
