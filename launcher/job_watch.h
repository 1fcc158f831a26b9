// SPDX-License-Identifier: Apache-2.0
// Knows whether, why and when this job is going to end: asks Slurm when somebody has been told to
// stop, and now and then for its EndTime, which administrators move.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>

#include "launcher/environment.h"
#include "launcher/job_notice.h"
#include "launcher/job_query.h"

namespace af {

// `next` is what Slurm says now, `known` what was known before. A job that is ended before its
// grace time is over was cancelled by somebody, though its record still has the preemption.
JobNotice later_notice(const JobNotice& known, const JobNotice& next, const JobStatus& status);

class JobWatch {
 public:
  struct Callbacks {
    // The job is going to end; called again when more is known (another reason; Slurm has begun).
    std::function<void(const JobNotice&)> on_notice;
    // As far as Slurm says the job goes on: the signal was for this process. `problem`: Slurm could
    // not be asked, and why.
    std::function<void(int signal, const std::string& problem)> on_signal;
    // KillWait is nearly over and this process will not see its end.
    std::function<void()> on_last_call;
    // Seconds that the longest checkpoint of the run has taken.
    std::function<double()> longest_checkpoint;
  };

  // `save_before`: --save-before. Nothing happens before start() or ask().
  JobWatch(asio::io_context& io, const Environment& environment, std::optional<double> save_before,
           Callbacks callbacks);

  void start();          // looks now, and again every few minutes
  void ask(int signal);  // somebody was told to stop by this signal; 0: look again
  bool asking() const { return asking_; }
  void on_answered(std::function<void()> once) { on_answered_ = std::move(once); }
  const JobNotice& notice() const { return notice_; }
  const std::optional<JobStatus>& status() const { return status_; }

 private:
  void take(const JobAnswer& answer);
  void look_in(double seconds);

  asio::io_context& io_;
  const Environment& environment_;
  const std::optional<double> save_before_;
  Callbacks callbacks_;
  asio::steady_timer look_timer_, last_call_;
  JobNotice notice_;
  std::optional<JobStatus> status_;
  std::function<void()> on_answered_;
  int signal_ = 0;  // that is to be explained
  bool asking_ = false, again_ = false;
};

}  // namespace af
