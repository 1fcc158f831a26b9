// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/metrics/log_thread.h"

namespace af::train {

// A logger by what it writes, on rank 0 of the world as it is.
class RankZeroLogger : public Callback {
 public:
  using Write = std::function<void(const std::vector<LogRecord>&)>;
  // `open` is called on the rank that becomes 0; what it opens, it opens with the first record.
  RankZeroLogger(std::string name, std::function<Write()> open);

  std::string name() const override { return name_; }
  void on_start(const StartInfo& info) override;
  void on_world_change(const WorldChangeInfo& info) override;
  void on_report(const ReportInfo& info) override;
  void on_end(const EndInfo&) override { thread_.reset(); }
  void on_exception(const std::string&) override { thread_.reset(); }

 private:
  void take_rank(int rank);

  std::string name_;
  std::function<Write()> open_;
  std::unique_ptr<LogThread> thread_;
};

}  // namespace af::train
