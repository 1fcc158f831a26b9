// SPDX-License-Identifier: Apache-2.0
// Asks Slurm about this job, and requeues it: one scontrol in a child process each, beside the
// event loop.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>

#include "launcher/environment.h"
#include "launcher/job_notice.h"

namespace af {

// This job as scontrol takes it: "1234", and of an array "1230_4". The plain number of one task of
// an array can be the number of the whole array. Empty outside Slurm.
std::string job_reference(const Environment& environment);

// SLURM_RESTART_COUNT.
int restart_count(const Environment& environment);

struct JobAnswer {
  std::optional<JobStatus> status;
  JobNotice notice;     // kNone where the status is missing
  std::string problem;  // why the status is missing, in words
};

// `on_answer` is called once, from the loop, within 4 s.
void query_job(asio::io_context& io, const Environment& environment,
               std::function<void(JobAnswer)> on_answer);

// The same for whoever wants to know only what the job was told for. The notice is kNone where the
// job goes on (somebody has signalled this process alone) and where Slurm does not answer.
void query_job_notice(asio::io_context& io, const Environment& environment,
                      std::function<void(JobNotice)> on_notice);

// `problem` is empty if the job is in the queue again.
void requeue_job(asio::io_context& io, const Environment& environment,
                 std::function<void(std::string problem)> on_end);

}  // namespace af
