// SPDX-License-Identifier: Apache-2.0
// The thread behind an MLflow logger: spools, sends, waits, says.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "train/metrics/mlflow_run.h"

namespace af::train {

// Thread-safe.
class MlflowSender {
 public:
  // Throws Error, as MlflowClient.
  explicit MlflowSender(const MlflowOptions& options);
  ~MlflowSender();  // as finish()

  // Never waits for a disk or a server.
  void push(std::vector<MlflowItem> items);
  // Sends what is left until the patience is over; what then remains stays in the spool.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  bool next(std::unique_lock<std::mutex>& lock);
  void spool(const std::vector<MlflowItem>& items);
  MlflowAnswer send_all();
  void after(const MlflowAnswer& answer);
  bool patience_is_over();
  void close(const std::string& complaint);
  void say(const std::string& text) const;

  const MlflowOptions options_;
  MlflowRun run_;
  std::optional<SpoolFile> own_;
  bool given_up_ = false;  // the server has no such run
  bool away_ = false;
  int outages_ = 0;
  std::string why_;
  std::chrono::milliseconds pause_{0};
  Clock::time_point try_at_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<MlflowItem> queue_;
  std::size_t lost_ = 0;
  bool ending_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace af::train
