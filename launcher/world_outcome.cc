// SPDX-License-Identifier: Apache-2.0
#include "launcher/world_outcome.h"

#include <fmt/core.h>

#include "launcher/exit_codes.h"
#include "launcher/signal_watch.h"

namespace af {

int RankEnd::exit_code() const {
  return signal != 0 ? kExitSignalBase + signal : code;
}

std::string describe(const RankEnd& end) {
  if (end.signal == 0) return fmt::format("exit code {}", end.code);
  return fmt::format("signal {} ({})", signal_name(end.signal), end.signal);
}

bool WorldOutcome::rank_ended(const RankEnd& end) {
  ended_.insert(end.rank);
  if (end.ok() || ending_) return false;
  if (!first_failure_) first_failure_ = end;
  if (stopped_by_ != 0 || over()) return false;
  return ending_ = true;
}

bool WorldOutcome::broken(const std::string& how, int code, const std::vector<int>& ranks_gone) {
  ended_.insert(ranks_gone.begin(), ranks_gone.end());
  // What follows from an end that is under way already is no news.
  if (ending_ || first_failure_) return false;
  if (broken_.empty()) {
    broken_ = how;
    broken_code_ = code;
  }
  return ending_ = true;
}

int WorldOutcome::exit_code() const {
  if (first_failure_) return first_failure_->exit_code();
  return broken_code_;
}

std::string WorldOutcome::reason() const {
  if (first_failure_)
    return fmt::format("rank {} on {} failed: {}", first_failure_->rank, first_failure_->host,
                       describe(*first_failure_));
  if (!broken_.empty()) return broken_;
  if (stopped_by_ != 0) return fmt::format("stopped by signal {}", signal_name(stopped_by_));
  return "all ranks have finished";
}

}  // namespace af
