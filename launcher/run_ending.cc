// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_ending.h"

#include <fmt/core.h>

#include <ctime>
#include <utility>

#include "launcher/checkpoint_watch.h"
#include "launcher/exit_codes.h"
#include "launcher/job_query.h"
#include "launcher/say.h"

namespace af {

RunEnding::RunEnding(asio::io_context& io, OutputWriter& writer, const Environment& environment,
                     const RunDirectory& directory, const std::string& run, int attempt,
                     std::optional<double> save_before, Callbacks callbacks)
    : io_(io),
      writer_(writer),
      environment_(environment),
      attempt_(attempt),
      callbacks_(std::move(callbacks)),
      attempts_(directory, checkpoint_directory(environment, directory), run, attempt),
      watch_(io, environment, save_before,
             {.on_notice = [this](const JobNotice& notice) { on_notice(notice); },
              .on_signal = [this](int signal,
                                  const std::string& problem) { on_signal(signal, problem); },
              .on_last_call = [this] { last_call(); },
              .longest_checkpoint =
                  [this] {
                    attempts_.journal().read();
                    return attempts_.journal().longest_checkpoint();
                  }}) {}

std::optional<int> RunEnding::refuse() {
  const auto why_not = refuse_attempt(attempts_.fruitless_before());
  if (!why_not) return std::nullopt;
  attempts_.end(true);
  callbacks_.note("no_progress", *why_not, kExitNoProgress);
  say(writer_, *why_not);
  return kExitNoProgress;
}

void RunEnding::start() {
  attempts_.begin();
  watch_.start();
}

void RunEnding::on_notice(const JobNotice& notice) {
  // One line for one event, however often it is confirmed.
  if (said_ == JobEnd::kNone || (notice.end == JobEnd::kCancelled && said_ != notice.end)) {
    say(writer_, "notice: " + notice_text(notice, std::time(nullptr)));
    said_ = notice.end;
  }
  if (!facts_ && !std::exchange(save_ordered_, true)) callbacks_.save(notice);
}

void RunEnding::on_signal(int signal, const std::string& problem) {
  if (!problem.empty() && !std::exchange(problem_said_, true))
    say(writer_, "cannot find out why the job was told to stop: " + problem);
  if (!facts_) callbacks_.signal(signal);
}

// Whoever is still saving may yet be done in time; but this process cannot requeue the job after
// its own end. Slurm is ending the job already: that takes no time from anybody.
void RunEnding::last_call() {
  const RunVerdict now = verdict();
  if (now.requeue) requeue(now, [] {});
}

RunVerdict RunEnding::verdict() {
  const Facts facts = facts_.value_or(Facts());
  RunEnd end = {.end = notice().end,
                .code = facts.code,
                .finished = facts.finished,
                .own_fault = facts.own_fault,
                .job = job_reference(environment_),
                .attempt = attempt_};
  if (watch_.status()) {
    end.batch = watch_.status()->batch;
    end.requeue = watch_.status()->requeue;
  }
  const bool left_well = facts_ && facts.code == 0 && end.end != JobEnd::kNone;
  end.fruitless = attempts_.fruitless_now(facts.progress || facts.saved || left_well);
  return judge(end);
}

void RunEnding::requeue(const RunVerdict& verdict, const std::function<void()>& then) {
  if (std::exchange(requeued_, true)) return then();
  attempts_.end(false);
  requeue_job(io_, environment_, [this, verdict, then](const std::string& problem) {
    if (problem.empty()) {
      callbacks_.note("requeue", to_text(notice().end), verdict.code);
      say(writer_, verdict.text);
    } else {
      say(writer_, fmt::format("cannot requeue job {}: {}", job_reference(environment_), problem));
    }
    then();
  });
}

void RunEnding::conclude(const Facts& facts, std::function<void(int code)> done) {
  facts_ = facts;
  done_ = std::move(done);
  // Something has ended the ranks that we were not told of: maybe it is the job's end.
  if (facts.code != 0 && !facts.own_fault && notice().end == JobEnd::kNone) watch_.ask(0);
  if (watch_.asking()) return watch_.on_answered([this] { settle(); });
  settle();
}

void RunEnding::settle() {
  const RunVerdict last = verdict();
  if (last.requeue) return requeue(last, [this, last] { done_(last.code); });
  attempts_.end(notice().end != JobEnd::kRequeued && !requeued_);
  if (last.fruitless) callbacks_.note("no_progress", last.text, last.code);
  if (!last.text.empty()) say(writer_, last.text);
  done_(last.code);
}

}  // namespace af
