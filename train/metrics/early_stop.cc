// SPDX-License-Identifier: Apache-2.0
#include "af/train/early_stop.h"

#include <cmath>
#include <limits>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {
// Of values_.
constexpr std::size_t kAny = 0;
constexpr std::size_t kBest = 1;
constexpr std::size_t kWithout = 2;
constexpr std::size_t kStopped = 3;
}  // namespace

EarlyStop::EarlyStop(std::string metric, EarlyStopOptions options)
    : metric_(std::move(metric)), options_(options) {
  if (options_.patience < 1)
    throw Error::format("early stop by {}: a patience of {}: at least 1 report", metric_,
                        options_.patience);
  if (!(options_.min_delta >= 0))
    throw Error::format("early stop by {}: a min_delta of {}: it is a distance, see mode", metric_,
                        options_.min_delta);
}

bool EarlyStop::update(double value) {
  if (stopped()) return true;
  const double gain = options_.mode == EarlyStopOptions::Mode::min ? values_[kBest] - value
                                                                   : value - values_[kBest];
  const bool better = !std::isnan(value) && (values_[kAny] == 0 || gain > options_.min_delta);
  if (better) {
    values_[kAny] = 1;
    values_[kBest] = value;
    values_[kWithout] = 0;
  } else {
    ++values_[kWithout];
  }
  if (without_better() >= options_.patience) values_[kStopped] = 1;
  return stopped();
}

double EarlyStop::best() const {
  return values_[kAny] != 0 ? values_[kBest] : std::numeric_limits<double>::quiet_NaN();
}
int64_t EarlyStop::without_better() const {
  return static_cast<int64_t>(values_[kWithout]);
}
bool EarlyStop::stopped() const {
  return values_[kStopped] != 0;
}

std::string EarlyStop::name() const {
  return "EarlyStop(" + metric_ + ")";
}

std::string EarlyStop::reason() const {
  return fmt::format("no better {} than {} in {} reports", metric_, best(), without_better());
}

void EarlyStop::on_start(const StartInfo&) {
  if (stopped()) throw StopTraining(reason());
}

void EarlyStop::on_report(const ReportInfo& info) {
  const auto found = info.metrics.find(metric_);
  if (found == info.metrics.end() || !update(found->second)) return;
  throw StopTraining(reason());
}

}  // namespace af::train
