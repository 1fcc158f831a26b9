// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/rank_zero_logger.h"

#include <chrono>
#include <utility>

namespace af::train {

RankZeroLogger::RankZeroLogger(std::string name, std::function<Write()> open)
    : name_(std::move(name)), open_(std::move(open)) {}

void RankZeroLogger::on_start(const StartInfo& info) {
  take_rank(info.rank);
}

void RankZeroLogger::on_world_change(const WorldChangeInfo& info) {
  take_rank(info.rank);
}

void RankZeroLogger::take_rank(int rank) {
  if (rank != 0) {
    thread_.reset();
    return;
  }
  if (thread_) return;
  LogThread::Options options;
  options.name = name_;
  thread_ = std::make_unique<LogThread>(options, open_());
}

void RankZeroLogger::on_report(const ReportInfo& info) {
  if (!thread_) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  thread_->push({std::chrono::duration<double>(now).count(), info.step, info.epoch, info.metrics});
}

}  // namespace af::train
