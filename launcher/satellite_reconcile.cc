// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_reconcile.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "launcher/satellite_submission.h"

namespace af {
namespace {

using nlohmann::json;

constexpr double kLookUpEvery = 15, kLookUpEveryAtMost = 120;
constexpr double kSubmitEvery = 60, kSubmitEveryAtMost = 600;
constexpr double kYoung = 60;
// The script of a satellite gives up after 30 s without a coordinator: what runs on for much longer
// is stuck, and holds a GPU.
constexpr double kJoinsWithin = 300;
constexpr double kEndsWithin = 60;
constexpr int kVanishedBeforeWaiting = 3;

bool contains_any(const std::string& text, std::initializer_list<const char*> parts) {
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::any_of(parts,
                             [&](const char* part) { return lower.find(part) != lower.npos; });
}

// sbatch's reason: of its lines the last that says an error, without its prefix.
std::string reason_of(const std::string& err) {
  std::string found, last;
  for (size_t start = 0; start < err.size();) {
    const size_t end = std::min(err.find('\n', start), err.size());
    const std::string line = err.substr(start, end - start);
    start = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    last = line;
    if (line.find("error:") != line.npos) found = line;
  }
  std::string reason = found.empty() ? last : found;
  for (const std::string_view prefix : {"sbatch: ", "error: ", "Batch job submission failed: "})
    if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
  constexpr size_t kLongest = 300;
  return reason.size() > kLongest ? reason.substr(0, kLongest) + "…" : reason;
}

bool is_job_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

bool counts(const Satellite& satellite) {
  return satellite.phase == Satellite::kQueued || satellite.phase == Satellite::kStarting ||
         satellite.phase == Satellite::kJoined;
}

int in_phase(const PoolState& state, Satellite::Phase phase) {
  return static_cast<int>(std::ranges::count_if(
      state.satellites, [&](const auto& one) { return one.second.phase == phase; }));
}

// Anything that the agents' connections do not tell.
bool is_unexplained(const PoolState& state, double now) {
  return now < state.look_again_until || std::ranges::any_of(state.satellites, [](const auto& one) {
           return one.second.phase != Satellite::kJoined;
         });
}

bool may_want_more(const PoolState& state) {
  return !state.refused && state.strikes < kStrikes;
}

void look_up_in(PoolState& state, double seconds, double now, double jitter) {
  state.look_up_at = now + seconds * (0.9 + 0.2 * jitter);
}

bool say_once(PoolState& state, const std::string& key) {
  return state.said.insert(key).second;
}

void wait_before_submitting(PoolState& state, double now) {
  state.submit_at = now + state.submit_every;
  state.submit_every = std::min(2 * state.submit_every, kSubmitEveryAtMost);
}

void strike(PoolState& state, const std::string& job, const std::string& node,
            PoolReports& reports) {
  ++state.strikes;
  std::string where;
  if (!node.empty()) {
    state.excluded.insert(node);
    where = " on " + node;
  }
  PoolReport report = {
      "node_excluded", {{"job", job}, {"node", node}, {"strikes", state.strikes}}, ""};
  if (state.strikes < kStrikes)
    report.text = fmt::format(
        "satellite {} died at its start{} (its output is in logs/satellites/{}.log): this run asks "
        "for no other there",
        job, where, job);
  else if (say_once(state, "strikes"))
    report.text = fmt::format(
        "satellite {} died at its start{} as {} before it (logs/satellites/{}.log): the run goes "
        "on with the GPUs that it has and asks for no more",
        job, where, kStrikes - 1, job);
  reports.push_back(std::move(report));
}

bool is_end(const std::string& state) {
  static const std::set<std::string> kEnds = {
      "BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE", "FAILED",
      "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",  "TIMEOUT"};
  return kEnds.contains(state);
}

bool is_own_end(const std::string& state) {
  return state == "COMPLETED" || state == "FAILED" || state == "OUT_OF_MEMORY" ||
         state == "TIMEOUT";
}

// One that has ended; true if it is to be forgotten.
bool ended(PoolState& state, Satellite& satellite, const QueuedJob& listed, double now,
           PoolReports& reports) {
  // Its agent's connection has not closed yet, and will tell.
  if (satellite.phase == Satellite::kJoined) return false;
  reports.push_back({"satellite_ended",
                     {{"job", listed.job},
                      {"state", listed.state},
                      {"node", listed.node},
                      {"seconds", listed.seconds}},
                     ""});
  if (is_own_end(listed.state) && !satellite.cancelled && (!satellite.joined || satellite.early)) {
    strike(state, listed.job, listed.node.empty() ? satellite.node : listed.node, reports);
  } else if (listed.state == "CANCELLED" && !satellite.cancelled) {
    // By somebody who does not want it: not at once the next one.
    wait_before_submitting(state, now);
    if (say_once(state, "cancelled"))
      reports.push_back({"",
                         {},
                         fmt::format("somebody has cancelled satellite {}: the next one is asked "
                                     "for later; --af-max-workers=1 asks for none",
                                     listed.job)});
  }
  return true;
}

// One that is in the queue still.
void listed_alive(Satellite& satellite, const QueuedJob& listed, double now, bool* changed) {
  if (!listed.node.empty()) satellite.node = listed.node;
  if (satellite.phase == Satellite::kJoined || satellite.phase == Satellite::kLeft) return;
  const Satellite::Phase phase = listed.state == "PENDING"      ? Satellite::kQueued
                                 : listed.state == "COMPLETING" ? Satellite::kLeft
                                                                : Satellite::kStarting;
  if (phase == satellite.phase) return;
  satellite.phase = phase;
  satellite.since = now;
  *changed = true;
}

}  // namespace

SubmissionOutcome submission_outcome(const ChildResult& sbatch) {
  using Outcome = SubmissionOutcome;
  Outcome outcome;
  outcome.text = sbatch.problem.empty() ? reason_of(sbatch.err) : sbatch.problem;
  if (!sbatch.problem.empty()) {
    outcome.kind = Outcome::kRefused;
    return outcome;
  }
  if (sbatch.timed_out || sbatch.signal != 0) {
    if (outcome.text.empty()) outcome.text = "sbatch has not answered";
    return outcome;
  }
  if (sbatch.ok()) {
    // --parsable prints "12" or "12;cluster"; a site's wrapper may print more.
    for (size_t start = 0; start < sbatch.out.size();) {
      const size_t end = std::min(sbatch.out.find('\n', start), sbatch.out.size());
      const std::string line = sbatch.out.substr(start, end - start);
      const std::string number = line.substr(0, line.find(';'));
      if (is_job_number(number)) {
        outcome.kind = Outcome::kAccepted;
        outcome.job = number;
      }
      start = end + 1;
    }
    return outcome;
  }
  const std::string& all = sbatch.err;
  if (contains_any(all, {"unable to contact", "timed out", "zero bytes", "transport endpoint",
                         "communication connection failure", "communication shutdown failure",
                         "controller is in standby", "standby mode", "connection refused",
                         "unexpected message received", "incompatible versions"})) {
    outcome.kind = Outcome::kUnknown;
  } else if (contains_any(all, {"requested time limit is invalid"})) {
    outcome.kind = Outcome::kTooLong;
  } else if (contains_any(
                 all,
                 {"access/permission denied", "access denied", "permission denied",
                  "invalid account", "invalid partition", "invalid qos", "invalid wckey",
                  "not permitted to use", "user's group not permitted", "invalid generic resource",
                  "job script", "unrecognized option", "invalid feature specification",
                  "requested node configuration is not available", "invalid job credential",
                  "invalid user id", "af: "})) {
    outcome.kind = Outcome::kRefused;
  } else {
    outcome.kind = Outcome::kLimited;
  }
  if (outcome.text.empty()) outcome.text = fmt::format("sbatch ended with {}", sbatch.code);
  return outcome;
}

double slurm_seconds(const std::string& text) {
  double days = 0, seconds = 0, number = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c))) {
      number = 10 * number + (c - '0');
    } else if (c == '-') {
      days = number;
      number = 0;
    } else if (c == ':') {
      seconds = 60 * (seconds + number);
      number = 0;
    } else {
      return 0;
    }
  }
  return days * 86400 + seconds + number;
}

std::optional<std::vector<QueuedJob>> queue_of(const ChildResult& squeue) {
  if (!squeue.ok()) return std::nullopt;
  std::vector<QueuedJob> jobs;
  for (size_t start = 0; start < squeue.out.size();) {
    const size_t end = std::min(squeue.out.find('\n', start), squeue.out.size());
    const std::string line = squeue.out.substr(start, end - start);
    start = end + 1;
    if (line.empty()) continue;
    std::vector<std::string> fields(1);
    for (const char c : line) {
      if (c == '|')
        fields.emplace_back();
      else
        fields.back() += c;
    }
    if (fields.size() != 4 || !is_job_number(fields[0])) return std::nullopt;
    jobs.push_back({fields[0], fields[1], slurm_seconds(fields[2]), fields[3]});
  }
  return jobs;
}

int satellites_counted(const PoolState& state) {
  return static_cast<int>(
      std::ranges::count_if(state.satellites, [](const auto& one) { return counts(one.second); }));
}

PoolAction reconcile(const PoolState& state, double now, bool may_submit) {
  if (state.in_doubt || now >= state.look_up_at) {
    if (now >= state.look_up_at) return {.kind = PoolAction::kLookUp};
    return {.at = state.look_up_at};
  }
  // What holds a GPU, and will not be of use any more.
  std::vector<std::string> stuck;
  for (const auto& [job, satellite] : state.satellites) {
    const double limit = satellite.phase == Satellite::kLeft       ? kEndsWithin
                         : satellite.phase == Satellite::kStarting ? kJoinsWithin
                                                                   : kNever;
    if (now - satellite.since >= limit) stuck.push_back(job);
  }
  if (!stuck.empty() && now >= state.cancel_at)
    return {.kind = PoolAction::kCancel, .jobs = std::move(stuck), .pending_only = false};

  const int wanted = state.strikes < kStrikes ? state.wanted : 0;
  const int counted = satellites_counted(state);
  const int pending = in_phase(state, Satellite::kQueued);
  if (counted > wanted && pending > 0 && now >= state.cancel_at) {
    // The youngest first: the others have waited longer.
    std::vector<std::pair<double, std::string>> queued;
    for (const auto& [job, satellite] : state.satellites)
      if (satellite.phase == Satellite::kQueued) queued.emplace_back(-satellite.since, job);
    std::ranges::sort(queued);
    PoolAction action = {.kind = PoolAction::kCancel};
    for (const auto& [since, job] : queued)
      if (static_cast<int>(action.jobs.size()) < counted - wanted) action.jobs.push_back(job);
    return action;
  }
  double at = state.look_up_at;
  if (now < state.cancel_at) at = std::min(at, state.cancel_at);
  for (const auto& [job, satellite] : state.satellites) {
    if (satellite.phase == Satellite::kLeft) at = std::min(at, satellite.since + kEndsWithin);
    if (satellite.phase == Satellite::kStarting) at = std::min(at, satellite.since + kJoinsWithin);
  }
  if (may_submit && may_want_more(state) && counted < wanted && pending < kMostPending) {
    if (now >= state.submit_at) return {.kind = PoolAction::kSubmit};
    at = std::min(at, state.submit_at);
  }
  return {.at = at};
}

PoolReports on_submission(PoolState& state, const SubmissionOutcome& given, double now,
                          double jitter) {
  PoolReports reports;
  SubmissionOutcome outcome = given;
  // A site that refuses what is longer than its partition's maximum does not say how long that is.
  if (outcome.kind == SubmissionOutcome::kTooLong &&
      (!std::isfinite(outcome.asked) || outcome.asked / 2 < kShortestLife))
    outcome.kind = SubmissionOutcome::kRefused;
  const json fields = {{"name", state.name}, {"reason", outcome.text}};
  switch (outcome.kind) {
    case SubmissionOutcome::kAccepted:
      state.satellites[outcome.job] = {.phase = Satellite::kQueued, .since = now};
      state.submit_every = kSubmitEvery;
      state.look_up_every = kLookUpEvery;
      // One that has left while sbatch ran is to be looked at now.
      if (!state.in_doubt) look_up_in(state, kLookUpEvery, now, jitter);
      reports.push_back({"satellite_submitted", {{"job", outcome.job}, {"name", state.name}}, ""});
      break;
    case SubmissionOutcome::kRefused: {
      state.refused = true;
      PoolReport report = {"satellite_refused", fields, ""};
      if (say_once(state, "refused"))
        report.text = fmt::format(
            "no further GPU can be asked for: {}; the run goes on with those that it has",
            outcome.text);
      reports.push_back(std::move(report));
      break;
    }
    case SubmissionOutcome::kTooLong:
      state.longest = outcome.asked / 2;
      break;
    case SubmissionOutcome::kLimited: {
      const double wait = state.submit_every;
      wait_before_submitting(state, now);
      PoolReport report = {"satellite_refused", fields, ""};
      report.fields["again_in"] = wait;
      if (say_once(state, "limit"))
        report.text = fmt::format(
            "Slurm takes no further satellite now: {}; asks again in {:.0f} s, then less often",
            outcome.text, wait);
      reports.push_back(std::move(report));
      break;
    }
    case SubmissionOutcome::kUnknown:
      state.in_doubt = true;
      state.look_up_every = kLookUpEvery;
      state.look_up_at = now;
      state.look_again_until = now + kYoung;
      state.submit_at = std::max(state.submit_at, now + kLookUpEvery);
      reports.push_back({"satellite_unknown", fields, ""});
      break;
  }
  return reports;
}

PoolReports on_queue(PoolState& state, const std::optional<std::vector<QueuedJob>>& queue,
                     double now, double jitter) {
  PoolReports reports;
  if (!queue) {
    // Unknown is not zero.
    state.silent = state.in_doubt = true;
    look_up_in(state, state.look_up_every, now, jitter);
    state.look_up_every = std::min(2 * state.look_up_every, kLookUpEveryAtMost);
    if (say_once(state, "silent"))
      reports.push_back({"controller_silent",
                         {{"name", state.name}},
                         "Slurm's controller does not answer: no satellite is submitted or "
                         "cancelled until it does; the training goes on"});
    return reports;
  }
  bool changed = std::exchange(state.silent, false);
  state.in_doubt = false;
  std::set<std::string> seen;
  for (const QueuedJob& listed : *queue) {
    seen.insert(listed.job);
    const auto known = state.satellites.find(listed.job);
    if (known == state.satellites.end()) {
      if (is_end(listed.state) || listed.state == "COMPLETING") continue;  // told before
      // The submission whose answer was lost.
      Satellite& found = state.satellites[listed.job];
      found = {.since = now};
      listed_alive(found, listed, now, &changed);
      changed = true;
      reports.push_back({"satellite_submitted",
                         {{"job", listed.job}, {"name", state.name}, {"found", true}},
                         ""});
    } else if (!is_end(listed.state)) {
      listed_alive(known->second, listed, now, &changed);
    } else if (ended(state, known->second, listed, now, reports)) {
      state.satellites.erase(known);
      changed = true;
    }
  }
  for (auto one = state.satellites.begin(); one != state.satellites.end();) {
    const std::string& job = one->first;
    const Satellite& satellite = one->second;
    // Slurm may have lost the job of an agent that is here: its connection is the truth.
    if (seen.contains(job) || satellite.phase == Satellite::kJoined) {
      ++one;
      continue;
    }
    reports.push_back({"satellite_ended", {{"job", job}, {"state", "unknown"}}, ""});
    if (satellite.early)
      strike(state, job, satellite.node, reports);
    else if (!satellite.joined && !satellite.cancelled &&
             ++state.vanished >= kVanishedBeforeWaiting)
      wait_before_submitting(state, now);
    one = state.satellites.erase(one);
    changed = true;
  }
  state.look_up_every =
      changed ? kLookUpEvery : std::min(2 * state.look_up_every, kLookUpEveryAtMost);
  if (is_unexplained(state, now))
    look_up_in(state, state.look_up_every, now, jitter);
  else
    state.look_up_at = kNever;
  return reports;
}

PoolReports on_cancelled(PoolState& state, const std::vector<std::string>& jobs, bool done,
                         double now) {
  PoolReports reports;
  for (const std::string& job : jobs) {
    const auto found = state.satellites.find(job);
    if (found == state.satellites.end() || found->second.phase == Satellite::kJoined) continue;
    Satellite& satellite = found->second;
    // One that never joined and was stuck: its node is not to be trusted.
    if (satellite.phase == Satellite::kStarting) strike(state, job, satellite.node, reports);
    satellite.phase =
        satellite.phase == Satellite::kQueued ? Satellite::kCancelled : Satellite::kLeft;
    satellite.cancelled = true;
    satellite.since = now;
    if (done) reports.push_back({"satellite_cancelled", {{"job", job}}, ""});
  }
  // Whether it was done, and what had started meanwhile.
  state.in_doubt = true;
  state.look_up_every = kLookUpEvery;
  state.look_up_at = now;
  state.cancel_at = now + kLookUpEvery;
  return reports;
}

void on_joined(PoolState& state, const std::string& job, const std::string& node, double now) {
  Satellite& satellite = state.satellites[job];
  satellite.phase = Satellite::kJoined;
  satellite.since = now;
  satellite.joined = true;
  if (!node.empty()) satellite.node = node;
  state.vanished = 0;
  if (!state.in_doubt && !is_unexplained(state, now)) state.look_up_at = kNever;
}

PoolReports on_left(PoolState& state, const std::string& job, double lifetime, bool explained,
                    double now) {
  Satellite& satellite = state.satellites[job];
  satellite.phase = Satellite::kLeft;
  satellite.since = now;
  satellite.early = !explained && lifetime < kYoung;
  state.in_doubt = true;
  state.look_up_every = kLookUpEvery;
  state.look_up_at = now;
  return {};
}

}  // namespace af
