// SPDX-License-Identifier: Apache-2.0
#include "launcher/coordinator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "launcher/exit_codes.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/say.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr seconds kJoinWithin{30};
constexpr seconds kLeaveWithin{15};
// After a TERM Slurm itself decides how long ranks may go on (KillWait, GraceTime). This is only
// for a TERM that nobody follows up, when some ranks have left and the others wait for them for
// ever.
constexpr seconds kStopWithin{600};
constexpr double kDefaultGetSeconds = 300;
constexpr double kMostGetSeconds = 1e9;  // more would overflow the clock, and end at once

json describe_workers(const Plan& plan) {
  json workers = json::array();
  for (const RankPlan& rank : plan.ranks) {
    json gpus = json::array();
    for (const Gpu& gpu : rank.gpus)
      gpus.push_back({{"uuid", gpu.uuid}, {"type", gpu.type}, {"memory_gb", gpu.memory_gb}});
    workers.push_back({{"rank", rank.rank}, {"host", rank.host}, {"gpus", gpus}});
  }
  return workers;
}

}  // namespace

Coordinator::Coordinator(asio::io_context& io, OutputWriter& writer, Journal& journal,
                         const Plan& plan, std::set<int> own_tasks, double grace, OnOver on_over)
    : io_(io),
      writer_(writer),
      journal_(journal),
      plan_(plan),
      own_tasks_(std::move(own_tasks)),
      grace_(grace),
      on_over_(std::move(on_over)),
      outcome_(static_cast<int>(plan.ranks.size())),
      keys_(io),
      join_timer_(io),
      stop_timer_(io),
      leave_timer_(io) {}

void Coordinator::begin() {
  journal_.event("world_formed", {{"size", plan_.ranks.size()},
                                  {"workers", describe_workers(plan_)},
                                  {"backend", plan_.backend},
                                  {"why", plan_.reason}});
  join_timer_.expires_after(kJoinWithin);
  join_timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    for (const Worker& worker : plan_.workers)
      if (!agents_.contains(worker.task) && !gone_.contains(worker.task))
        agent_left(worker.task, "did not connect");
  });
}

void Coordinator::agent_joined(int task, Send send) {
  agents_[task] = std::move(send);
  journal_.event("worker_joined", {{"worker", task}, {"host", host_of(task)}});
  if (agents_.size() == plan_.workers.size()) join_timer_.cancel();
  // It may have missed the order.
  if (outcome_.ending()) agents_[task]({{"op", "end"}, {"grace", grace_}});
}

void Coordinator::on_message(int task, const json& message) {
  const std::string op = message.value("op", "");
  if (op == "rank_exit") return rank_exit(message);
  if (op == "told") return told(task, message.value("signal", 0));
  if (op == "cannot_start") return cannot_start(task, message);
  if (op == "set") {
    const json key = message.value("key", json()), value = message.value("value", json());
    if (!key.is_string() || !value.is_string())
      return reply(task, message, {{"ok", false}, {"error", "key and value have to be texts"}});
    keys_.set(key.get<std::string>(), value.get<std::string>());
    return reply(task, message, {{"ok", true}});
  }
  if (op == "get") return get(task, message);
  if (op == "report" || op == "checkpoint") {
    json fields = message;
    fields.erase("op");
    journal_.event(op, fields);
  }
}

void Coordinator::get(int task, const json& message) {
  const json key = message.value("key", json());
  if (!key.is_string())
    return reply(task, message, {{"ok", false}, {"error", "the key has to be a text"}});
  const json wanted = message.value("timeout", json());
  const double patience = wanted.is_number() ? wanted.get<double>() : kDefaultGetSeconds;
  // The whole message would be kept with its text otherwise.
  const json reference = {{"ref", message.value("ref", 0)}};
  keys_.get(key.get<std::string>(),
            std::chrono::milliseconds(
                static_cast<int64_t>(std::clamp(patience, 0.0, kMostGetSeconds) * 1000)),
            [this, task, reference](const std::optional<std::string>& value) {
              if (value)
                reply(task, reference, {{"ok", true}, {"value", *value}});
              else
                reply(task, reference, {{"ok", false}, {"error", "timeout"}});
            });
}

void Coordinator::reply(int task, const json& message, const json& answer) {
  const auto agent = agents_.find(task);
  if (agent == agents_.end()) return;
  agent->second({{"op", "reply"}, {"ref", message.value("ref", 0)}, {"answer", answer}});
}

void Coordinator::rank_exit(const json& message) {
  RankEnd end = {.rank = message.value("rank", -1),
                 .host = message.value("host", ""),
                 .code = message.value("code", 0),
                 .signal = message.value("signal", 0),
                 .last_lines = message.value("last_lines", std::vector<std::string>()),
                 .log = message.value("log", "")};
  json fields = {{"rank", end.rank}, {"host", end.host}, {"log", end.log}};
  if (end.signal != 0)
    fields["signal"] = end.signal;
  else
    fields["code"] = end.code;
  journal_.event("rank_exit", fields);
  if (outcome_.rank_ended(end)) {
    say(writer_, fmt::format("rank {} on {} failed: {}; ending the others", end.rank, end.host,
                             describe(end)));
    end_world();
  }
  check_over();
}

void Coordinator::told(int task, int signal) {
  note_stop(signal);
  journal_.event("notice", {{"worker", task}, {"reason", "signal " + signal_name(signal)}});
}

void Coordinator::note_stop(int signal) {
  if (signal != SIGTERM && signal != SIGINT && signal != SIGHUP) return;
  outcome_.told_to_stop(signal);
  stop_timer_.expires_after(kStopWithin);
  stop_timer_.async_wait([this](const asio::error_code& error) {
    if (!error && !outcome_.over()) end_world();
  });
}

void Coordinator::signal_all(int signal, const std::string& route) {
  if (!gate_.admit(signal, route, monotonic_seconds())) return;
  note_stop(signal);
  journal_.event("notice", {{"reason", "signal " + signal_name(signal)}});
  order_all({{"op", "signal"}, {"signal", signal}});
}

void Coordinator::agent_left(int task, const std::string& how) {
  if (!gone_.insert(task).second) return;
  agents_.erase(task);
  if (!closing_) {
    journal_.event("worker_lost", {{"worker", task}, {"host", host_of(task)}, {"how", how}});
    broken(fmt::format("lost the agent of task {} on {}: {}", task, host_of(task), how),
           kExitLauncherLost, ranks_of(task));
  }
  check_over();
}

void Coordinator::front_left() {
  broken("af-launch in the batch script has gone", kExitLauncherLost, {});
  check_over();
}

// Only the ranks that were never started are gone: outside Slurm one agent has them all, some may
// run already, and nobody would tell of the end of the others.
void Coordinator::cannot_start(int task, const json& message) {
  broken(fmt::format("cannot start the ranks of task {} on {}: {}", task, host_of(task),
                     message.value("why", "")),
         message.value("code", kExitCannotStart), message.value("ranks", ranks_of(task)));
  check_over();
}

void Coordinator::broken(const std::string& how, int code, const std::vector<int>& ranks_gone) {
  if (!outcome_.broken(how, code, ranks_gone)) return;
  say(writer_, how + "; ending the world");
  end_world();
}

void Coordinator::end_world() {
  order_all({{"op", "end"}, {"grace", grace_}});
}

void Coordinator::order_all(const json& order) {
  const auto agents = agents_;  // an order may bring a departure
  for (const auto& [task, send] : agents) send(order);
}

void Coordinator::check_over() {
  if (!outcome_.over()) return;
  if (!std::exchange(closing_, true)) {
    join_timer_.cancel();
    stop_timer_.cancel();
    explain_failure();
    journal_.event("world_ended", {{"reason", outcome_.reason()}});
    const auto agents = agents_;
    for (const auto& [task, send] : agents)
      if (!own_tasks_.contains(task)) send({{"op", "exit"}, {"code", outcome_.exit_code()}});
    leave_timer_.expires_after(kLeaveWithin);
    leave_timer_.async_wait([this](const asio::error_code& error) {
      if (error) return;
      say(writer_, fmt::format("not all agents have left within {} s", kLeaveWithin.count()));
      close_world();
    });
  }
  if (others_have_left()) close_world();
}

bool Coordinator::others_have_left() const {
  for (const auto& [task, send] : agents_)
    if (!own_tasks_.contains(task)) return false;
  return true;
}

void Coordinator::close_world() {
  if (!on_over_) return;
  leave_timer_.cancel();
  const int code = outcome_.exit_code();
  journal_.event("run_end", {{"code", code}, {"reason", outcome_.reason()}});
  journal_.state(
      {{"state", code == 0 ? "done" : "failed"}, {"code", code}, {"reason", outcome_.reason()}});
  std::exchange(on_over_, nullptr)(code);
}

void Coordinator::explain_failure() {
  const auto& failure = outcome_.first_failure();
  if (!failure) return;
  std::string text = fmt::format("the first failure was rank {} on {}: {}\n", failure->rank,
                                 failure->host, describe(*failure));
  for (const std::string& line : failure->last_lines) text += "af-launch:   | " + line + "\n";
  say(writer_, text + "af-launch: its log is " + failure->log);
}

std::vector<int> Coordinator::ranks_of(int task) const {
  std::vector<int> ranks;
  for (const RankPlan& rank : plan_.ranks)
    if (rank.task == task) ranks.push_back(rank.rank);
  return ranks;
}

std::string Coordinator::host_of(int task) const {
  for (const Worker& worker : plan_.workers)
    if (worker.task == task) return worker.host;
  return "an unknown node";
}

}  // namespace af
