// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_query.h"

#include <asio/post.hpp>
#include <ctime>
#include <utility>

#include "common/error.h"
#include "launcher/child_command.h"

namespace af {
namespace {

constexpr double kShowWithin = 2;
// Where the configuration cannot be read: Slurm's own default.
constexpr int kUsualKillWait = 30;

void scontrol(asio::io_context& io, const Environment& environment,
              std::vector<std::string> arguments, double limit,
              std::function<void(ChildResult)> on_end) {
  ChildRequest request;
  request.argv = {"scontrol"};
  request.argv.insert(request.argv.end(), arguments.begin(), arguments.end());
  request.environment = environment;
  request.environment["SLURM_TIME_FORMAT"] = "%s";
  request.environment["LC_ALL"] = "C";
  request.limit = limit;
  try {
    ChildCommand::start(io, std::move(request), on_end);
  } catch (const Error& error) {
    ChildResult failed;
    failed.problem = error.what();
    asio::post(io, [on_end, failed] { on_end(failed); });
  }
}

// One line for people.
std::string problem_of(const ChildResult& result) {
  if (!result.problem.empty()) return result.problem;
  if (result.timed_out) return "Slurm does not answer";
  std::string text = result.err.empty() ? result.out : result.err;
  text.erase(text.find_last_not_of(" \n") + 1);
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text.empty() ? fmt::format("scontrol ended with {}", result.code) : text;
}

}  // namespace

std::string job_reference(const Environment& environment) {
  const std::string array = value_or(environment, "SLURM_ARRAY_JOB_ID");
  if (!array.empty()) return array + "_" + value_or(environment, "SLURM_ARRAY_TASK_ID", "0");
  return value_or(environment, "SLURM_JOB_ID");
}

int restart_count(const Environment& environment) {
  return static_cast<int>(number_or(environment, "SLURM_RESTART_COUNT", 0));
}

void query_job(asio::io_context& io, const Environment& environment,
               std::function<void(JobAnswer)> on_answer) {
  scontrol(
      io, environment, {"show", "job", "-o", job_reference(environment)}, kShowWithin,
      [&io, environment, on_answer = std::move(on_answer)](const ChildResult& result) {
        JobAnswer answer;
        answer.status = result.ok() ? parse_job_status(result.out) : std::nullopt;
        if (!answer.status) {
          answer.problem = problem_of(result);
          return on_answer(answer);
        }
        const int attempt = restart_count(environment);
        answer.notice = job_notice(*answer.status, attempt, kUsualKillWait, std::time(nullptr));
        if (!answer.notice.final) return on_answer(answer);
        scontrol(io, environment, {"show", "config"}, kShowWithin,
                 [answer, attempt, on_answer](const ChildResult& config) mutable {
                   answer.notice = job_notice(*answer.status, attempt,
                                              parse_kill_wait(config.out).value_or(kUsualKillWait),
                                              std::time(nullptr));
                   on_answer(answer);
                 });
      });
}

void query_job_notice(asio::io_context& io, const Environment& environment,
                      std::function<void(JobNotice)> on_notice) {
  query_job(io, environment, [on_notice = std::move(on_notice)](const JobAnswer& answer) {
    on_notice(answer.notice);
  });
}

void requeue_job(asio::io_context& io, const Environment& environment,
                 std::function<void(std::string)> on_end) {
  constexpr double kRequeueWithin = 10;
  scontrol(io, environment, {"requeue", job_reference(environment)}, kRequeueWithin,
           [on_end = std::move(on_end)](const ChildResult& result) {
             // What it says of a job that is in the queue again already.
             const bool there = result.err.find("Job is pending execution") != std::string::npos;
             on_end(result.ok() || there ? "" : problem_of(result));
           });
}

}  // namespace af
