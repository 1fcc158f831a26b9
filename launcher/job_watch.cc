// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_watch.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "launcher/requeue.h"

namespace af {
namespace {

constexpr double kLookEvery = 180;
constexpr double kLookSoonest = 1;
// Time for the requeue itself.
constexpr int kLastCallBefore = 2;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

JobNotice later_notice(const JobNotice& known, const JobNotice& next, const JobStatus& status) {
  if (next.end == JobEnd::kNone) return known;
  JobNotice notice = next;
  if (known.end == JobEnd::kPreempted && !known.final && next.final &&
      next.end == JobEnd::kPreempted && known.deadline && status.end_time &&
      *status.end_time < *known.deadline)
    notice.end = JobEnd::kCancelled;
  // Once cancelled by Slurm's own word, for good.
  if (known.final && known.end == JobEnd::kCancelled && next.end != JobEnd::kRequeued)
    notice.end = JobEnd::kCancelled;
  return notice;
}

JobWatch::JobWatch(asio::io_context& io, const Environment& environment,
                   std::optional<double> save_before, Callbacks callbacks)
    : io_(io),
      environment_(environment),
      save_before_(save_before),
      callbacks_(std::move(callbacks)),
      look_timer_(io),
      last_call_(io) {}

void JobWatch::start() {
  ask(0);
}

void JobWatch::ask(int signal) {
  if (signal != 0) signal_ = signal;
  if (std::exchange(asking_, true)) {
    again_ = true;
    return;
  }
  look_timer_.cancel();
  query_job(io_, environment_, [this](const JobAnswer& answer) { take(answer); });
}

void JobWatch::take(const JobAnswer& answer) {
  asking_ = false;
  // What was asked meanwhile may be news to this answer.
  if (std::exchange(again_, false)) return ask(0);
  const int64_t now = std::time(nullptr);
  JobNotice next = answer.notice;
  double wait = kLookEvery;
  if (answer.status) {
    status_ = answer.status;
    const auto margin =
        save_margin({.asked = save_before_,
                     .time_limit = static_cast<double>(status_->time_limit.value_or(0)),
                     .longest_checkpoint = callbacks_.longest_checkpoint()});
    if (next.end == JobEnd::kNone && margin && status_->end_time) {
      const double left = static_cast<double>(*status_->end_time - now) - *margin;
      if (left <= 0)
        next = {.end = JobEnd::kTimeLimit, .deadline = status_->end_time};
      else
        wait = std::clamp(left, kLookSoonest, kLookEvery);
    }
    const JobNotice later = later_notice(notice_, next, *status_);
    const bool news = later.end != notice_.end || later.final != notice_.final;
    notice_ = later;
    if (news) callbacks_.on_notice(notice_);
    if (news && notice_.final && notice_.deadline &&
        (notice_.end == JobEnd::kPreempted || notice_.end == JobEnd::kTimeLimit)) {
      last_call_.expires_after(milliseconds(
          std::max<double>(0, static_cast<double>(*notice_.deadline - now - kLastCallBefore))));
      last_call_.async_wait([this](const asio::error_code& error) {
        if (!error) callbacks_.on_last_call();
      });
    }
  }
  const int signal = std::exchange(signal_, 0);
  if (signal != 0 && next.end == JobEnd::kNone) callbacks_.on_signal(signal, answer.problem);
  if (!notice_.final) look_in(wait);
  if (on_answered_) std::exchange(on_answered_, nullptr)();
}

void JobWatch::look_in(double seconds) {
  look_timer_.expires_after(milliseconds(seconds));
  look_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) ask(0);
  });
}

}  // namespace af
