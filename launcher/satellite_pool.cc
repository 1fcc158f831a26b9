// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_pool.h"

#include <asio/post.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <system_error>

#include "common/error.h"
#include "launcher/monotonic_seconds.h"

namespace af {
namespace {

constexpr auto kStopsWithin = std::chrono::seconds(5);
// A timer's limit; longer pauses are asked for again.
constexpr double kLongestPause = 3600;

double random_jitter() {
  static std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace

SatellitePool::SatellitePool(asio::io_context& io, SlurmCommands& slurm,
                             SatellitePoolOptions options, OnEvent on_event, Say say)
    : io_(io),
      slurm_(slurm),
      options_(std::move(options)),
      on_event_(std::move(on_event)),
      say_(std::move(say)),
      timer_(io) {
  state_.name = options_.facts.name;
}

double SatellitePool::now() const {
  return options_.now ? options_.now() : monotonic_seconds();
}

double SatellitePool::jitter() const {
  return options_.jitter ? options_.jitter() : random_jitter();
}

double SatellitePool::seconds_left() const {
  return options_.seconds_left ? options_.seconds_left() : std::numeric_limits<double>::infinity();
}

void SatellitePool::start() {
  const auto logs = satellite_logs(options_.facts.run_directory);
  std::error_code error;
  std::filesystem::create_directories(logs, error);
  if (error) throw Error::format("cannot make {}: {}", logs.string(), error.message());
  started_ = true;
  step();
}

void SatellitePool::set_wanted(int satellites) {
  state_.wanted = satellites;
  step();
}

void SatellitePool::agent_joined(const std::string& job, const std::string& node) {
  on_joined(state_, job, node, now());
  step();
}

void SatellitePool::agent_left(const std::string& job, double lifetime, bool explained) {
  report(on_left(state_, job, lifetime, explained, now()));
  step();
}

void SatellitePool::report(const PoolReports& reports) {
  for (const PoolReport& one : reports) {
    if (!one.event.empty()) on_event_(one.event, one.fields);
    if (!one.text.empty()) say_(one.text);
  }
}

void SatellitePool::step() {
  if (!started_ || busy_ || stopping_) return;
  timer_.cancel();
  const PoolAction action = reconcile(state_, now(), seconds_left() >= kShortestLife);
  if (action.kind != PoolAction::kNothing) return act(action);
  if (!std::isfinite(action.at)) return;
  const double pause = std::min(std::max(action.at - now(), 0.0), kLongestPause);
  timer_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(std::ceil(pause * 1000))));
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) step();
  });
}

void SatellitePool::act(const PoolAction& action) {
  busy_ = true;
  switch (action.kind) {
    case PoolAction::kSubmit: {
      submitted_ = true;
      const double left = seconds_left();
      const SubmissionCommand command =
          satellite_submission(options_.facts, left, state_.longest, state_.excluded);
      return slurm_.submit(
          command, [this, asked = std::min(left, state_.longest)](const ChildResult& result) {
            SubmissionOutcome outcome = submission_outcome(result);
            outcome.asked = asked;
            report(on_submission(state_, outcome, now(), jitter()));
            command_over();
          });
    }
    case PoolAction::kLookUp:
      return slurm_.look_up(state_.name, [this](const ChildResult& result) {
        report(on_queue(state_, queue_of(result), now(), jitter()));
        command_over();
      });
    case PoolAction::kCancel:
      return slurm_.cancel(state_.name, action.jobs, action.pending_only,
                           [this, jobs = action.jobs](const ChildResult& result) {
                             report(on_cancelled(state_, jobs, result.ok(), now()));
                             command_over();
                           });
    case PoolAction::kNothing:
      busy_ = false;
  }
}

void SatellitePool::command_over() {
  busy_ = false;
  if (stopping_) return cancel_pending();
  step();
}

void SatellitePool::stop(std::function<void()> done) {
  if (stopping_) return;
  stopping_ = true;
  done_ = std::move(done);
  timer_.expires_after(kStopsWithin);
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) stopped();
  });
  // An answer that is on its way may be a job to cancel.
  if (!busy_) cancel_pending();
}

// By name, so that it is right also where a job's number is not known, and when it is done again.
void SatellitePool::cancel_pending() {
  if (!submitted_) return asio::post(io_, [this] { stopped(); });
  busy_ = true;
  slurm_.cancel(state_.name, {}, true, [this](const ChildResult&) { stopped(); });
}

void SatellitePool::stopped() {
  if (!done_) return;
  timer_.cancel();
  slurm_.abandon();
  const auto done = std::exchange(done_, nullptr);
  done();
}

}  // namespace af
