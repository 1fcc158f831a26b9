// SPDX-License-Identifier: Apache-2.0
#include "launcher/requeue.h"

#include <fmt/core.h>

#include <algorithm>

#include "launcher/exit_codes.h"

namespace af {
namespace {

constexpr double kLeastMargin = 60;

}  // namespace

RunVerdict judge(const RunEnd& end) {
  RunVerdict verdict = {.code = end.code};
  if (end.end == JobEnd::kNone || end.end == JobEnd::kCancelled || end.finished) return verdict;
  if (end.own_fault) {
    if (end.end != JobEnd::kRequeued)
      verdict.text =
          fmt::format("job {} is not started again: the program had failed by itself", end.job);
    return verdict;
  }
  // All ranks left with 0, but the work is not done: a script must not take it for done.
  if (end.code == 0) verdict.code = kExitPreempted;
  if (end.end == JobEnd::kRequeued) return verdict;  // Slurm has done it
  if (end.fruitless >= kMostFruitlessAttempts) {
    verdict.fruitless = true;
    verdict.code = kExitNoProgress;
    verdict.text = fmt::format(
        "job {} is not started again: {} attempts in a row have ended without a checkpoint or a "
        "report",
        end.job, end.fruitless);
  } else if (!end.batch) {
    verdict.text = fmt::format(
        "job {} is not started again: Slurm starts only jobs of sbatch again; the next one goes "
        "on from the last checkpoint if it is given the same --run-dir",
        end.job);
  } else if (!end.requeue) {
    verdict.text =
        fmt::format("job {} is not started again: it was submitted with --no-requeue", end.job);
  } else {
    verdict.requeue = true;
    verdict.text = fmt::format(
        "job {} is requeued ({}): attempt {} will go on from the last "
        "checkpoint",
        end.job, to_text(end.end), end.attempt + 1);
  }
  return verdict;
}

std::optional<std::string> refuse_attempt(int fruitless) {
  if (fruitless < kMostFruitlessAttempts) return std::nullopt;
  return fmt::format(
      "{} attempts in a row have ended without a checkpoint or a report: not started again; "
      "`scontrol requeue` tries anew",
      fruitless);
}

std::optional<double> save_margin(const SaveTime& time) {
  if (time.time_limit <= 0) return std::nullopt;
  if (time.asked) {
    if (*time.asked <= 0) return std::nullopt;
    // A job that saves at once would never get anywhere.
    return std::min(*time.asked, 0.9 * time.time_limit);
  }
  return std::min(std::max(kLeastMargin, 2 * time.longest_checkpoint), time.time_limit / 4);
}

}  // namespace af
