// SPDX-License-Identifier: Apache-2.0
#include "launcher/coordinator.h"

#include <fmt/core.h>

#include <asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <utility>

#include "common/error.h"
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
constexpr double kBeat = 1;              // seconds
// A loaded file server or a paused virtual machine is no reason to give up a job of a fixed size.
constexpr double kSilenceElastic = 3, kSilenceFixed = 60;
// A world of which no rank can be reached may go on where it is, until its agents have missed this
// process for 10 s and ended it. Only then may another begin.
constexpr double kCutOff = 12;

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
                         const Plan& plan, CoordinatorOptions options, Satellites* satellites,
                         OnOver on_over)
    : io_(io),
      writer_(writer),
      journal_(journal),
      plan_(plan),
      options_(std::move(options)),
      satellites_(satellites),
      on_over_(std::move(on_over)),
      outcome_(static_cast<int>(plan.ranks.size())),
      keys_(io),
      join_timer_(io),
      stop_timer_(io),
      leave_timer_(io),
      beat_timer_(io),
      generation_(options_.generation),
      arrive_timer_(io),
      gather_timer_(io),
      settle_timer_(io),
      grow_timer_(io) {
  for (const Worker& worker : plan_.workers) {
    members_[worker.task].card = worker;
    members_[worker.task].rank_running = true;
    world_.push_back(worker.task);
    next_task_ = std::max(next_task_, worker.task + 1);
  }
}

void Coordinator::begin() {
  run_since_ = world_since_ = ended_at_ = monotonic_seconds();
  journal_world(false, "start");
  join_timer_.expires_after(kJoinWithin);
  join_timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    for (const Worker& worker : plan_.workers)
      if (!members_[worker.task].connected && !gone_.contains(worker.task))
        agent_left(worker.task, "did not connect");
  });
  next_beat_ = monotonic_seconds() + kBeat;
  beat();
  if (satellites_ != nullptr) satellites_->set_wanted(options_.max_workers - 1);
}

void Coordinator::journal_world(bool warm, const std::string& why) {
  journal_.event("world_formed", {{"size", plan_.ranks.size()},
                                  {"workers", describe_workers(plan_)},
                                  {"backend", plan_.backend},
                                  {"why", plan_.reason},
                                  {"warm", warm},
                                  {"because", why}});
}

void Coordinator::agent_joined(int task, Send send, std::function<void()> close) {
  Member& member = members_[task];
  member.send = std::move(send);
  member.close = std::move(close);
  member.connected = true;
  member.joined_at = member.last_beat = monotonic_seconds();
  journal_.event("worker_joined", {{"worker", task}, {"host", host_of(task)}});
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const auto& one) { return one.second.connected; });
  if (all) join_timer_.cancel();
  // It may have missed the order.
  if (outcome_.ending()) order(task, {{"op", "end"}, {"grace", options_.grace}});
}

std::optional<int> Coordinator::satellite_joined(const std::string& job, Worker card, Send send,
                                                 std::function<void()> close,
                                                 std::string& why_not) {
  int others = 0;
  for (const auto& [task, member] : members_) others += member.connected && !member.leaving;
  if (!may_change() || stopping_ || some_finished_ || others >= options_.max_workers) {
    why_not = closing_ || finishing_ || stopping_ || some_finished_ ? "the run is ending"
                                                                    : "there are enough workers";
    return std::nullopt;
  }
  card.task = next_task_;
  // Once it is a member, no plan would mean no world.
  try {
    std::vector<Worker> workers = plan_.workers;
    workers.push_back(card);
    make_plan(std::move(workers), options_.plan);
  } catch (const Error& error) {
    why_not = error.what();
    say(writer_, fmt::format("the worker of job {} cannot take part: {}", job, why_not));
    return std::nullopt;
  }
  const int task = next_task_++;
  Member& member = members_[task];
  member.card = std::move(card);
  member.send = std::move(send);
  member.close = std::move(close);
  member.connected = true;
  member.satellite = true;
  member.job = job;
  member.joined_at = member.last_beat = monotonic_seconds();
  journal_.event("worker_joined",
                 {{"worker", task}, {"host", member.card.host}, {"job", member.job}});
  if (satellites_ != nullptr) satellites_->joined(job, member.card.host);
  // After the welcome, which the caller sends.
  asio::post(io_, [this, task] {
    if (!members_.contains(task)) return;
    start_standbys();
    consider_growth();
  });
  return task;
}

void Coordinator::on_message(int task, const json& message) {
  if (!on_over_) return;  // the journal has its last line
  try {
    take_message(task, message);
  } catch (const json::exception& error) {
    // A program may send anything to its agent.
    say(writer_, fmt::format("a message of {} makes no sense: {}", name_of(task), error.what()));
  }
}

void Coordinator::take_message(int task, const json& message) {
  const std::string op = message.value("op", "");
  const auto member = members_.find(task);
  if (member == members_.end()) return;
  member->second.last_beat = monotonic_seconds();
  if (op == "beat") return;
  if (op == "rank_exit") return rank_exit(task, message);
  if (op == "told") return told(task, message.value("signal", 0));
  if (op == "notice" && member->second.satellite) return satellite_told(task, message);
  if (op == "cannot_start") return cannot_start(task, message);
  if (op == "set") return set(task, message);
  if (op == "get") return get(task, message);
  if (op == "client") {
    member->second.client = true;
    return client_appeared(task);
  }
  if (op == "arrive")
    return arrive(task, {.generation = message.value("generation", -1),
                         .step = message.value("step", int64_t{-1}),
                         .in_step = message.value("in_step", false)});
  if (op == "finished") {
    if (phase_ == Phase::kEnding) return;  // it will be started anew
    member->second.finished = finishing_ = true;
    if (satellites_ != nullptr) satellites_->stop();
    return check_left_behind();
  }
  if (op == "options") {
    const int most = message.value("max_failures", 0);
    max_failures_ = most < 0 ? std::numeric_limits<int>::max() : most;
    return;
  }
  json fields = message;
  fields.erase("op");
  if (op == "saved") {
    saved_ = true;
    journal_.event("saved", fields);
  } else if (op == "first_step") {
    member->second.worked = true;
    empty_worlds_ = 0;
    if (!std::exchange(restart_measured_, true)) restart_seconds_ = monotonic_seconds() - ended_at_;
    journal_.event(op, fields);
  } else if (op == "report" || op == "checkpoint") {
    journal_.event(op, fields);
    progress();
    if (op == "checkpoint") {
      checkpoint_at_ = monotonic_seconds();
      consider_growth();
    }
  }
}

void Coordinator::checkpoint_seen(const std::string& path) {
  if (closing_ || phase_ == Phase::kEnding || all_clients()) return;
  journal_.event("checkpoint", {{"path", path}, {"seen", true}});
  progress();
  checkpoint_at_ = monotonic_seconds();
  consider_growth();
}

void Coordinator::progress() {
  progressed_ = true;
  fruitless_ = 0;
  for (auto& [task, member] : members_) {
    member.deaths = 0;
    member.worked |= in_world(task);
  }
}

void Coordinator::set(int task, const json& message) {
  const json key = message.value("key", json()), value = message.value("value", json());
  if (!key.is_string() || !value.is_string())
    return reply(task, message, {{"ok", false}, {"error", "key and value have to be texts"}});
  keys_.set(key.get<std::string>(), value.get<std::string>());
  reply(task, message, {{"ok", true}});
}

void Coordinator::get(int task, const json& message) {
  const json key = message.value("key", json());
  if (!key.is_string())
    return reply(task, message, {{"ok", false}, {"error", "the key has to be a text"}});
  if (world_lost_) return reply(task, message, {{"ok", false}, {"error", "the world has ended"}});
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
                reply(task, reference,
                      {{"ok", false}, {"error", world_lost_ ? "the world has ended" : "timeout"}});
            });
}

void Coordinator::reply(int task, const json& message, const json& answer) {
  order(task, {{"op", "reply"}, {"ref", message.value("ref", 0)}, {"answer", answer}});
}

void Coordinator::order(int task, const json& order) {
  const auto member = members_.find(task);
  if (member == members_.end() || !member->second.connected) return;
  const Send send = member->second.send;  // an order may bring a departure
  send(order);
}

void Coordinator::rank_exit(int task, const json& message) {
  RankEnd end = {.rank = message.value("rank", -1),
                 .host = message.value("host", ""),
                 .code = message.value("code", 0),
                 .signal = message.value("signal", 0),
                 .last_lines = message.value("last_lines", std::vector<std::string>()),
                 .log = message.value("log", "")};
  // It may have ended before its agent heard of the world that it is in, where it is another rank.
  if (elastic() && in_world(task) && rank_of(task) >= 0) end.rank = rank_of(task);
  // Without Slurm one agent has the ranks of all workers.
  json fields = {{"rank", end.rank},
                 {"host", end.host},
                 {"log", end.log},
                 {"worker", message.value("worker", task)}};
  if (end.signal != 0)
    fields["signal"] = end.signal;
  else
    fields["code"] = end.code;
  journal_.event("rank_exit", fields);
  if (elastic()) {
    elastic_rank_exit(task, end);
  } else {
    fixed_rank_exit(end);
  }
}

void Coordinator::fixed_rank_exit(const RankEnd& end) {
  if (phase_ == Phase::kEnding) {
    outcome_.rank_ended(end);
    return check_ended();
  }
  const bool again = !end.ok() && !outcome_.ending() && !stopping_ && outcome_.stopped_by() == 0 &&
                     own_faults_ < max_failures_ && fruitless_ + 1 < kMostFruitless;
  if (again) {
    ++own_faults_;
    ++fruitless_;
    say_allowed(end);
    outcome_.rank_ended(end);
    return begin_cold(fmt::format("rank {} failed", end.rank));
  }
  if (outcome_.rank_ended(end)) fail(end);
  check_over();
}

void Coordinator::say_allowed(const RankEnd& end) {
  const std::string allowed = max_failures_ == std::numeric_limits<int>::max()
                                  ? ", any number is allowed"
                                  : fmt::format(" of the {} that are allowed", max_failures_);
  say(writer_, fmt::format("rank {} on {} failed: {}; failure {}{}", end.rank, end.host,
                           describe(end), own_faults_, allowed));
}

void Coordinator::fail(const RankEnd& end) {
  own_fault_ = !told_to_end();
  say(writer_, fmt::format("rank {} on {} failed: {}; ending the others", end.rank, end.host,
                           describe(end)));
  end_world();
}

void Coordinator::told(int task, int signal) {
  journal_.event("notice", {{"worker", task}, {"reason", "signal " + signal_name(signal)}});
  if (signal == SIGTERM && elastic() && members_[task].satellite)
    return satellite_told(task, json::object());
  note_stop(signal);
  // A TERM to one of them is the end of all: ranks that have not heard of it would wait for those
  // that leave (case B19). Agents pass one TERM on. The front finds out why, and orders the save.
  if (options_.to_front)
    options_.to_front({{"op", "told"}, {"signal", signal}});
  else if (signal == SIGTERM)
    save_all("signal TERM", nullptr);
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
  if (signal == SIGTERM) save_all("signal TERM", nullptr);
}

void Coordinator::save_all(const std::string& reason, const json& deadline) {
  journal_.event("notice", {{"reason", reason}, {"deadline", deadline}, {"all", true}});
  // Why, and how long there is, is often known only after the first signal.
  if (std::exchange(stopping_, true))
    return order_all(
        {{"op", "event"},
         {"event",
          {{"event", "notice"}, {"reason", reason}, {"deadline", deadline}, {"all", true}}}});
  if (satellites_ != nullptr) satellites_->stop();
  note_stop(SIGTERM);
  order_all({{"op", "save"}, {"reason", reason}, {"deadline", deadline}});
}

void Coordinator::agent_left(int task, const std::string& how) {
  if (!on_over_ || !members_.contains(task) || !gone_.insert(task).second) return;
  if (elastic() && members_[task].satellite) return elastic_agent_left(task, how);
  members_[task].connected = false;
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

json Coordinator::exit_facts() const {
  const bool all_well = outcome_.exit_code() == 0 && outcome_.over();
  return {{"finished", all_well && !told_to_end()},
          {"saved", saved_ || (told_to_end() && outcome_.exit_code() == 0)},
          {"progress", progressed_},
          {"own_fault", own_fault_}};
}

// Both sides of a connection say every second that they are there: a node that loses power, a
// network that is cut and a process that is stopped send no end of the connection.
void Coordinator::beat() {
  beat_timer_.expires_after(std::chrono::milliseconds(static_cast<int>(kBeat * 1000)));
  beat_timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    const double now = monotonic_seconds();
    const double late = std::max(0.0, now - next_beat_);
    next_beat_ = now + kBeat;
    std::vector<int> silent;
    for (auto& [task, member] : members_) {
      if (!member.connected || options_.own_tasks.contains(task)) continue;
      if (late > kBeat / 2) member.last_beat += late;  // it was this process that did not run
      if (now - member.last_beat > silence_allowed())
        silent.push_back(task);
      else
        order(task, {{"op", "beat"}});
    }
    const bool all = std::all_of(world_.begin(), world_.end(), [&](int task) {
      return std::find(silent.begin(), silent.end(), task) != silent.end();
    });
    if (all && elastic() && !world_.empty()) cut_off_till_ = now + kCutOff;
    for (const int task : silent) {
      if (members_[task].close) members_[task].close();
      agent_left(task, fmt::format("no sign of life for {:g} s", silence_allowed()));
    }
    beat();
  });
}

double Coordinator::silence_allowed() const {
  return elastic() ? kSilenceElastic : kSilenceFixed;
}

// Only the ranks that were never started are gone: outside Slurm one agent has them all, some may
// run already, and nobody would tell of the end of the others.
void Coordinator::cannot_start(int task, const json& message) {
  const std::string how =
      fmt::format("cannot start the ranks of {}: {}", name_of(task), message.value("why", ""));
  if (elastic() && members_[task].satellite) {
    members_[task].rank_running = false;
    say(writer_, how);
    return release(task, "its rank cannot be started");
  }
  broken(how, message.value("code", kExitCannotStart), message.value("ranks", ranks_of(task)));
  check_over();
}

void Coordinator::broken(const std::string& how, int code, const std::vector<int>& ranks_gone) {
  if (phase_ == Phase::kEnding) {
    // The world that was to follow does not; what has ended so far was no failure.
    phase_ = Phase::kRunning;
    std::vector<int> gone = ranks_gone;
    for (const RankPlan& rank : plan_.ranks)
      if (outcome_.has_ended(rank.rank)) gone.push_back(rank.rank);
    outcome_ = WorldOutcome(static_cast<int>(plan_.ranks.size()));
    outcome_.broken(how, code, gone);
  } else if (!outcome_.broken(how, code, ranks_gone)) {
    return;
  }
  finishing_ = true;
  say(writer_, how + "; ending the world");
  end_world();
}

void Coordinator::end_world() {
  order_all({{"op", "end"}, {"grace", options_.grace}});
}

void Coordinator::order_all(const json& text) {
  std::vector<int> tasks;
  for (const auto& [task, member] : members_) tasks.push_back(task);
  for (const int task : tasks) order(task, text);
}

void Coordinator::check_over() {
  if (phase_ == Phase::kEnding) return check_ended();
  if (elastic() && (finishing_ || stopping_)) count_lost();
  if (!outcome_.over()) return check_left_behind();
  if (!std::exchange(closing_, true)) {
    for (Timer* timer :
         {&join_timer_, &stop_timer_, &arrive_timer_, &gather_timer_, &settle_timer_, &grow_timer_})
      timer->cancel();
    if (satellites_ != nullptr) satellites_->stop();
    explain_failure();
    if (!world_lost_) journal_.event("world_ended", {{"reason", outcome_.reason()}});
    for (const auto& [task, member] : std::map(members_))
      if (!options_.own_tasks.contains(task))
        order(task, {{"op", "exit"}, {"code", outcome_.exit_code()}});
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
  for (const auto& [task, member] : members_)
    if (member.connected && !options_.own_tasks.contains(task)) return false;
  return true;
}

void Coordinator::close_world() {
  if (!on_over_) return;
  leave_timer_.cancel();
  beat_timer_.cancel();
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

int Coordinator::rank_of(int task) const {
  const std::vector<int> ranks = ranks_of(task);
  return ranks.empty() ? -1 : ranks[0];
}

std::string Coordinator::host_of(int task) const {
  const auto member = members_.find(task);
  return member == members_.end() ? "an unknown node" : member->second.card.host;
}

std::string Coordinator::name_of(int task) const {
  return fmt::format("worker {} on {}", task, host_of(task));
}

}  // namespace af
