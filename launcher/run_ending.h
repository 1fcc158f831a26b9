// SPDX-License-Identifier: Apache-2.0
// The end of a run when its job is taken away: says why and until when, has the ranks told to save,
// and has the job started again when they have left, or says why not. Used by the one process of
// a job that outlives its ranks: the front, or without one the agent with the coordinator.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>

#include "launcher/attempts.h"
#include "launcher/environment.h"
#include "launcher/job_watch.h"
#include "launcher/output_writer.h"
#include "launcher/requeue.h"
#include "launcher/run_directory.h"

namespace af {

class RunEnding {
 public:
  struct Callbacks {
    // All ranks shall save and leave. Once for each run.
    std::function<void(const JobNotice&)> save;
    // The job goes on: the signal was for this run alone.
    std::function<void(int signal)> signal;
    // For the journal: "requeue" or "no_progress".
    std::function<void(const std::string& event, const std::string& reason, int code)> note;
  };
  // The coordinator's last word.
  struct Facts {
    int code = 0;
    bool finished = false, own_fault = false, progress = false, saved = false;
  };

  // `environment` has to outlive this object. `attempt`: AF_ATTEMPT.
  RunEnding(asio::io_context& io, OutputWriter& writer, const Environment& environment,
            const RunDirectory& directory, const std::string& run, int attempt,
            std::optional<double> save_before, Callbacks callbacks);

  // Too many attempts without progress: says so, and gives the code to exit with.
  std::optional<int> refuse();
  void start();
  // Somebody has been told to stop by this signal.
  void told(int signal) { watch_.ask(signal); }
  const JobNotice& notice() const { return watch_.notice(); }
  // The ranks have left: `done` is called with the exit code, within 15 s.
  void conclude(const Facts& facts, std::function<void(int code)> done);

 private:
  void on_notice(const JobNotice& notice);
  void on_signal(int signal, const std::string& problem);
  void last_call();
  void settle();
  RunVerdict verdict();
  void requeue(const RunVerdict& verdict, const std::function<void()>& then);

  asio::io_context& io_;
  OutputWriter& writer_;
  const Environment& environment_;
  const int attempt_;
  Callbacks callbacks_;
  Attempts attempts_;
  JobWatch watch_;
  JobEnd said_ = JobEnd::kNone;
  bool save_ordered_ = false, requeued_ = false, problem_said_ = false;
  std::optional<Facts> facts_;
  std::function<void(int code)> done_;
};

}  // namespace af
