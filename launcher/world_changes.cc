// SPDX-License-Identifier: Apache-2.0
// From one world of an elastic run to the next (docs/design/elastic.md).
#include <fmt/core.h>

#include <asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "common/error.h"
#include "launcher/coordinator.h"
#include "launcher/exit_codes.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/say.h"
#include "launcher/worker_json.h"

namespace af {
namespace {

using nlohmann::json;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// For survivors to come out of a lost world. They are told and freed within milliseconds; the rest
// is for a program that is busy elsewhere (it writes a checkpoint, it validates).
constexpr double kArriveWithin = 10;
// For the last rank to come to a change on which all have agreed, after the first one has. Then the
// world counts as lost: the first may have come because it could not go on.
constexpr double kAgreedWithin = 10;
// The first world waits so long for satellites that Slurm starts at once, and for the programs of
// those that have come.
constexpr double kGatherLeast = 1.5, kGatherMost = 30;
// A rank's exit and the loss that caused it arrive in any order.
constexpr double kSettle = 0.3;
constexpr int kMostDeaths = 3;       // of one worker's ranks without progress between
constexpr int kMostEmptyWorlds = 3;  // warm worlds without a step
// A worker that is lost after it has worked is no reason to avoid its node (a network that was cut
// for a while, a process that was killed), unless it goes on and on.
constexpr int kForgivenLosses = 3;

json event_order(const json& event) {
  return {{"op", "event"}, {"event", event}};
}

bool contains(const std::vector<int>& tasks, int task) {
  return std::find(tasks.begin(), tasks.end(), task) != tasks.end();
}

std::string ranks_text(size_t number) {
  return fmt::format("{} rank{}", number, number == 1 ? "" : "s");
}

}  // namespace

bool Coordinator::in_world(int task) const {
  return contains(world_, task);
}

// Those that a warm change can count on.
bool Coordinator::all_clients() const {
  bool any = false;
  for (const int task : world_) {
    const Member& member = members_.at(task);
    if (!member.rank_running) continue;
    if (!member.client) return false;
    any = true;
  }
  return any;
}

std::vector<Worker> Coordinator::cards_of(const std::vector<int>& tasks) const {
  std::vector<Worker> cards;
  cards.reserve(tasks.size());
  for (const int task : tasks) cards.push_back(members_.at(task).card);
  return cards;
}

void Coordinator::drop_from_world(int task) {
  std::erase(world_, task);
}

// Ranks that were lost, or were ended on the way to a world that is not formed any more, are not
// waited for.
void Coordinator::count_lost() {
  for (const RankPlan& rank : plan_.ranks) {
    const auto member = members_.find(rank.task);
    if (member != members_.end() && member->second.rank_running) continue;
    if (!unexplained_.contains(rank.task))
      outcome_.rank_ended({.rank = rank.rank, .host = rank.host});
  }
}

// --- ranks that end

void Coordinator::elastic_rank_exit(int task, const RankEnd& end) {
  Member& member = members_[task];
  if (!std::exchange(member.rank_running, false)) return;
  member.client = member.finished = false;
  member.arrived.reset();
  if (phase_ == Phase::kEnding && !closing_) return check_ended();
  if (!in_world(task)) {
    // A rank that was on its way to a world.
    if (member.leaving) return release(task, "taken back");
    if (some_finished_ && !end.ok() && may_change())
      return give_up(end, "a rank failed behind the end of its training");
    if (end.ok() || !may_change()) return check_over();
    say(writer_, fmt::format("the rank of {} failed before it had joined: {}; its log is {}",
                             name_of(task), describe(end), end.log));
    if (++member.deaths >= kMostDeaths) return release(task, "its ranks fail");
    return start_standby(task);
  }
  if (member.leaving && may_change()) {
    drop_from_world(task);
    release(task, "taken back");
    if (phase_ == Phase::kAgreeing || phase_ == Phase::kLost) return check_arrivals();
    return begin_lost(fmt::format("{} has left", name_of(task)));
  }
  // A job that is being taken is not restarted; but clients may have to re-form to save.
  const bool stopped = told_to_stop() && (end.signal != SIGKILL || !all_clients());
  if (end.ok() || !may_change() || stopped) {
    // Once one rank has come to the end of the program, no world can be formed any more.
    if (end.ok()) finishing_ = true;
    if (outcome_.rank_ended(end)) fail(end);
    if (finishing_ && !closing_) release(task, "the program has finished");
    return check_over();
  }
  settle_exit(task, end);
}

// It is dead: nobody waits for it any more. Why it died is looked at a little later.
void Coordinator::settle_exit(int task, const RankEnd& end) {
  if (judge_end(end, false) == EndCause::kLost) {
    last_loss_ = monotonic_seconds();
    say(writer_, fmt::format("rank {} on {} was killed (signal KILL)", end.rank, end.host));
    drop_from_world(task);
    // Too little memory, for instance: it would happen for ever.
    if (++members_[task].deaths >= kMostDeaths) {
      if (!members_[task].satellite)
        return give_up(end, fmt::format("the ranks of {} are killed again and again without a "
                                        "report or a checkpoint between",
                                        name_of(task)));
      release(task, "its ranks are killed");
    }
    return begin_lost(fmt::format("rank {} on {} was killed", end.rank, end.host));
  }
  unexplained_[task] = end;
  settle_timer_.expires_after(milliseconds(kSettle));
  settle_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) judge_exits();
  });
}

void Coordinator::judge_exits() {
  const auto exits = std::exchange(unexplained_, {});
  if (exits.empty()) return;
  if (!may_change() || told_to_stop()) {
    for (const auto& [task, end] : exits)
      if (outcome_.rank_ended(end)) fail(end);
    return check_over();
  }
  if (phase_ == Phase::kEnding) return check_ended();
  const bool loss = monotonic_seconds() - last_loss_ < 2 * kSettle + 1;
  for (const auto& [task, end] : exits) drop_from_world(task);
  const RankEnd& first = exits.begin()->second;
  restart_or_fail(judge_end(first, loss), first);
}

void Coordinator::restart_or_fail(EndCause cause, const RankEnd& end) {
  if (cause == EndCause::kOwnFault) ++own_faults_;
  const RestartAnswer answer = decide_restart({.cause = cause,
                                               .own_faults = own_faults_,
                                               .max_failures = max_failures_,
                                               .fruitless = fruitless_ + 1});
  if (!answer.restart) {
    if (cause != EndCause::kOwnFault) say(writer_, answer.why);
    return give_up(end, answer.why);
  }
  ++fruitless_;  // restarts for GPUs that were taken are nobody's fault, and do not count
  if (cause == EndCause::kOwnFault) say_allowed(end);
  begin_cold(cause == EndCause::kOwnFault ? fmt::format("rank {} failed", end.rank)
                                          : "a worker was lost");
}

// The ranks that have ended before count as ended; those that run are ended.
void Coordinator::give_up(const RankEnd& end, const std::string& why) {
  finishing_ = true;
  outcome_ = WorldOutcome(static_cast<int>(plan_.ranks.size()));
  outcome_.rank_ended(end);
  outcome_.broken(why, kExitLauncherLost);
  fail(end);
  check_over();
}

// --- workers that go

void Coordinator::elastic_agent_left(int task, const std::string& how) {
  Member& member = members_[task];
  member.connected = false;
  member.rank_running = false;
  if (satellites_ != nullptr) {
    const bool known = member.leaving || closing_ || finishing_;
    const bool forgiven = !known && member.worked && ++losses_[member.card.host] <= kForgivenLosses;
    satellites_->left(member.job, monotonic_seconds() - member.joined_at, known || forgiven);
  }
  const bool expected = closing_ || (member.leaving && !in_world(task));
  journal_.event("worker_lost", {{"worker", task},
                                 {"host", member.card.host},
                                 {"job", member.job},
                                 {"how", member.leaving ? member.why_leaving : how}});
  const std::string name = name_of(task);
  const bool was_in_world = in_world(task);
  const int rank_was = was_in_world ? rank_of(task) : -1;
  drop_from_world(task);
  unexplained_.erase(task);
  members_.erase(task);
  if (expected) {
    check_gathered();
    return check_over();
  }
  if (!may_change() || (stopping_ && !all_clients())) {
    // Its rank ends with it. The others may do without it: they have come to the end.
    if (was_in_world && rank_was >= 0) outcome_.rank_ended({.rank = rank_was, .host = name});
    if (was_in_world) free_stragglers(fmt::format("{} was lost", name));
    return check_over();
  }
  last_loss_ = monotonic_seconds();
  if (!was_in_world) {
    if (phase_ == Phase::kGathering) return check_gathered();
    if (phase_ == Phase::kEnding) return check_ended();
    return;
  }
  say(writer_, fmt::format("lost {}: {}", name, how));
  begin_lost(fmt::format("{} was lost", name));
}

// A satellite's job is being taken back: it is told so by Slurm, and has a little time.
void Coordinator::satellite_told(int task, const json& message) {
  const auto found = members_.find(task);
  if (found == members_.end()) return;
  Member& member = found->second;
  const json deadline = message.value("deadline", json());
  const std::string reason = message.value("reason", "preempted");
  if (member.leaving || !deadline.is_null()) {
    journal_.event("notice", {{"worker", task}, {"reason", reason}, {"deadline", deadline}});
    order(task,
          event_order(
              {{"event", "notice"}, {"reason", reason}, {"deadline", deadline}, {"all", false}}));
  }
  if (member.leaving) return;
  member.leaving = true;
  member.why_leaving = "taken back";
  if (!may_change()) return;
  say(writer_, fmt::format("{} is being taken back", name_of(task)));
  if (!in_world(task)) {
    if (member.rank_running)
      order(task, {{"op", "end"}, {"grace", 0}});
    else
      release(task, "taken back");
    return;
  }
  switch (phase_) {
    case Phase::kLost:
    case Phase::kEnding:
      return;  // the next world goes without it
    case Phase::kGathering:
      return check_gathered();
    case Phase::kRunning:
    case Phase::kAgreeing:
      break;
  }
  if (!all_clients()) return begin_cold(fmt::format("{} is being taken back", name_of(task)));
  add_reason(fmt::format("{} was taken back", name_of(task)));
  phase_ = Phase::kAgreeing;
  at_checkpoint_ = false;
  for (const int one : world_) order(one, event_order({{"event", "change"}, {"when", "step"}}));
  check_arrivals();
}

// Its agent ends, and with it the satellite's job.
void Coordinator::release(int task, const std::string& why) {
  const auto found = members_.find(task);
  if (found == members_.end() || !found->second.satellite) return;
  if (!std::exchange(found->second.leaving, true)) found->second.why_leaving = why;
  order(task, {{"op", "exit"}, {"code", 0}});
}

// --- a world is lost

// Several may go before the next world is formed; that GPUs wait to join is no reason any more when
// one has gone.
void Coordinator::add_reason(const std::string& why) {
  const bool more = !why_changed_.empty() && !at_checkpoint_;
  why_changed_ = more ? why_changed_ + ", " + why : why;
}

void Coordinator::begin_lost(const std::string& why) {
  if (!may_change()) {
    free_stragglers(why);
    return check_over();
  }
  if (phase_ == Phase::kEnding) return check_ended();
  add_reason(why);
  if (phase_ == Phase::kGathering) {
    start_standbys();
    return check_gathered();
  }
  bool anybody = false;
  for (const int task : world_) anybody |= members_[task].rank_running && !members_[task].leaving;
  if (!anybody || !all_clients() || empty_worlds_ >= kMostEmptyWorlds) return begin_cold(why);
  ended_at_ = monotonic_seconds();
  phase_ = Phase::kLost;
  if (!std::exchange(world_lost_, true)) journal_.event("world_ended", {{"reason", why}});
  at_checkpoint_ = false;
  keys_.forget();
  for (const int task : std::vector<int>(world_))
    order(task, event_order({{"event", "lost"}, {"generation", generation_}, {"why", why}}));
  await_arrivals(kArriveWithin);
  check_arrivals();
}

// Some have come to the end of the program. One that has not would wait in its last operation for
// the rank that is lost.
void Coordinator::free_stragglers(const std::string& why) {
  if (closing_ || outcome_.ending()) return;
  for (const int task : std::vector<int>(world_)) {
    const Member& member = members_[task];
    if (member.rank_running && member.client && !member.finished)
      order(task, event_order({{"event", "lost"}, {"generation", generation_}, {"why", why}}));
  }
}

void Coordinator::await_arrivals(double seconds) {
  awaiting_ = true;
  arrive_timer_.expires_after(milliseconds(seconds));
  arrive_timer_.async_wait([this, seconds](const asio::error_code& error) {
    if (error) return;
    awaiting_ = false;
    if (phase_ == Phase::kAgreeing) return begin_lost("its ranks did not agree on a change");
    if (phase_ != Phase::kLost) return;
    for (const int task : std::vector<int>(world_)) {
      const Member& member = members_[task];
      if (!member.rank_running || member.arrived) continue;
      say(writer_, fmt::format("the rank of {} has not come to the next world within {:g} s: it is "
                               "ended",
                               name_of(task), seconds));
      order(task, {{"op", "end"}, {"grace", 0}});
    }
  });
}

void Coordinator::arrive(int task, const Arrival& arrival) {
  Member& member = members_[task];
  if (!elastic() || !member.rank_running) return;
  // Said before the world that it is in now was formed.
  if (in_world(task) && arrival.generation >= 0 && arrival.generation < generation_) return;
  member.arrived = arrival;
  if (!may_change()) return check_left_behind();
  switch (phase_) {
    case Phase::kEnding:
      return;
    case Phase::kGathering:
      return check_gathered();
    case Phase::kAgreeing:
      if (in_world(task) && !awaiting_) await_arrivals(kAgreedWithin);
      return check_arrivals();
    case Phase::kLost:
      return check_arrivals();
    case Phase::kRunning:
      break;
  }
  if (!in_world(task)) return consider_growth();
  if (arrival.generation < 0) {
    // Its first world: so far it only was started.
    phase_ = Phase::kGathering;
    gather_since_ = monotonic_seconds();
    return check_gathered();
  }
  begin_lost(fmt::format("rank {} on {} cannot go on in it", rank_of(task), host_of(task)));
}

void Coordinator::check_arrivals() {
  if (phase_ != Phase::kLost && phase_ != Phase::kAgreeing) return;
  std::vector<int> who;
  for (const int task : world_) {
    Member& member = members_[task];
    if (!member.rank_running) continue;
    if (!member.arrived) {
      // Of a lost world nobody waits for one that is leaving; it would be told to leave anyway.
      if (member.leaving && phase_ == Phase::kLost) continue;
      return;
    }
    if (!member.leaving) who.push_back(task);
  }
  if (who.empty()) return begin_cold(why_changed_);
  if (phase_ == Phase::kAgreeing && at_checkpoint_) {
    for (const auto& [task, member] : members_)
      if (!in_world(task) && member.arrived && !member.leaving) {
        who.push_back(task);
        last_growth_ = monotonic_seconds();
      }
    std::sort(who.begin(), who.end());
  }
  form_world(who);
}

// The last reduction of the program may have completed on some of its ranks only: they have
// finished, and those that have not go on without them.
void Coordinator::check_left_behind() {
  if (!elastic() || !finishing_ || closing_ || outcome_.ending() || phase_ == Phase::kEnding)
    return;
  std::vector<int> who;
  for (const int task : world_) {
    const Member& member = members_.at(task);
    if (!member.rank_running || member.finished) continue;
    if (!member.arrived) return;
    who.push_back(task);
  }
  if (who.empty()) return;
  if (phase_ != Phase::kAgreeing && !world_lost_)
    journal_.event("world_ended", {{"reason", "ranks have finished"}});
  finishing_ = false;
  some_finished_ = true;
  add_reason("some ranks have come to the end");
  form_world(who);
}

// The first world of clients: as many as are there at once.
void Coordinator::check_gathered() {
  if (phase_ != Phase::kGathering || !may_change()) return;
  std::vector<int> who;
  bool all = true, any = false;
  for (const auto& [task, member] : members_) {
    if (!member.connected || member.leaving) continue;
    any |= member.rank_running;
    if (member.arrived)
      who.push_back(task);
    else
      all = false;
  }
  if (!any) return begin_cold(why_changed_);
  const double now = monotonic_seconds();
  const double least = run_since_ + (satellites_ != nullptr ? kGatherLeast : 0);
  const double most = gather_since_ + kGatherMost;
  if (!who.empty() && ((all && now >= least) || now >= most)) {
    gather_timer_.cancel();
    why_changed_ = "start";
    return form_world(who);
  }
  gather_timer_.expires_after(milliseconds(std::max(0.01, (now < least ? least : most) - now)));
  gather_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) check_gathered();
  });
}

// The next world, by whichever way it came: nothing of the one before counts in it.
void Coordinator::enter_world(Plan plan, bool warm) {
  plan_ = std::move(plan);
  ++generation_;
  world_lost_ = false;
  phase_ = Phase::kRunning;
  world_since_ = monotonic_seconds();
  const int stopped_by = outcome_.stopped_by();
  outcome_ = WorldOutcome(static_cast<int>(plan_.ranks.size()));
  outcome_.told_to_stop(stopped_by);
  world_.clear();
  for (const RankPlan& rank : plan_.ranks) world_.push_back(rank.task);
  journal_.set_generation(generation_);
  journal_world(warm, why_changed_);
  journal_.state({{"size", plan_.ranks.size()}, {"backend", plan_.backend}});
}

void Coordinator::form_world(const std::vector<int>& who) {
  arrive_timer_.cancel();
  awaiting_ = false;
  if (phase_ == Phase::kAgreeing) journal_.event("world_ended", {{"reason", why_changed_}});
  std::map<int, int> was;
  for (const RankPlan& rank : plan_.ranks) was[rank.task] = rank.rank;
  const std::vector<int> before = world_;
  const size_t size_before = plan_.ranks.size();
  Plan plan;
  try {
    plan = make_plan(cards_of(who), options_.plan);
  } catch (const Error& error) {
    broken(error.what(), kExitCannotStart, {});
    return check_over();
  }
  enter_world(std::move(plan), true);
  ++empty_worlds_;
  gathered_ = true;
  json members = json::array();
  for (const RankPlan& rank : plan_.ranks) {
    const Arrival& arrival = *members_[rank.task].arrived;
    const bool old = arrival.generation >= 0 && was.contains(rank.task);
    members.push_back(
        {{"was", old ? was[rank.task] : -1}, {"step", arrival.step}, {"in_step", arrival.in_step}});
  }
  const json workers = cards_of(world_);
  for (const int task : std::vector<int>(world_)) {
    members_[task].arrived.reset();
    order(
        task,
        {{"op", "world"}, {"generation", generation_}, {"workers", workers}, {"members", members}});
  }
  for (const int task : before)
    if (members_.contains(task) && members_[task].leaving)
      order(task, event_order({{"event", "leave"}, {"why", "its GPU is being taken back"}}));
  std::string hosts;
  for (const std::string& host : plan_.hosts) hosts += (hosts.empty() ? "" : ", ") + host;
  if (why_changed_ == "start")
    say(writer_, fmt::format("training with {} ({})", ranks_text(plan_.ranks.size()), hosts));
  else
    say(writer_, fmt::format("{}: the training goes on with {} instead of {} ({})", why_changed_,
                             ranks_text(plan_.ranks.size()), size_before, hosts));
  why_changed_.clear();
  asio::post(io_, [this] {
    start_standbys();
    consider_growth();
  });
}

// --- ranks are ended and started anew

void Coordinator::begin_cold(const std::string& why) {
  if (phase_ != Phase::kEnding) {
    why_changed_ = why;
    ended_at_ = monotonic_seconds();
  }
  phase_ = Phase::kEnding;
  if (!std::exchange(world_lost_, true)) journal_.event("world_ended", {{"reason", why}});
  arrive_timer_.cancel();
  awaiting_ = false;
  keys_.forget();
  unexplained_.clear();
  for (const auto& [task, member] : std::map(members_))
    if (!elastic() || member.rank_running) order(task, {{"op", "end"}, {"grace", options_.grace}});
  check_ended();
}

void Coordinator::check_ended() {
  if (phase_ != Phase::kEnding || closing_) return;
  if (!elastic()) {
    if (outcome_.over()) start_world();
    return;
  }
  for (const auto& [task, member] : members_)
    if (member.connected && member.rank_running) return;
  start_world();
}

void Coordinator::start_world() {
  if (stopping_) {
    phase_ = Phase::kRunning;
    outcome_ = WorldOutcome(elastic() ? static_cast<int>(plan_.ranks.size()) : 0);
    outcome_.told_to_stop(SIGTERM);
    return check_over();
  }
  if (const double wait = cut_off_till_ - monotonic_seconds(); wait > 0) {
    gather_timer_.expires_after(milliseconds(wait + 0.01));
    return gather_timer_.async_wait([this](const asio::error_code& error) {
      if (!error) check_ended();
    });
  }
  std::vector<int> who;
  for (const auto& [task, member] : std::map(members_)) {
    if (!member.connected) continue;
    if (member.leaving)
      release(task, "taken back");
    else
      who.push_back(task);
  }
  const size_t size_before = plan_.ranks.size();
  Plan plan;
  try {
    // Outside Slurm one agent stands for several workers of the plan.
    plan = make_plan(elastic() ? cards_of(who) : plan_.workers, options_.plan);
  } catch (const Error& error) {
    phase_ = Phase::kRunning;
    broken(error.what(), kExitCannotStart, {});
    return check_over();
  }
  enter_world(std::move(plan), false);
  if (plan_.ranks.size() > size_before) last_growth_ = monotonic_seconds();
  empty_worlds_ = 0;
  gathered_ = some_finished_ = false;
  restart_measured_ = false;
  // Checkpoints of programs that are no clients are seen a second or two later.
  const std::string redone =
      checkpoint_at_ ? fmt::format(
                           "; what it has done since its last checkpoint (about {:.0f} s) "
                           "is done again",
                           std::max(0.0, ended_at_ - *checkpoint_at_))
      : elastic() ? "; no checkpoint of it was seen, so it may begin from the start"
                  : "";
  say(writer_,
      fmt::format(
          "{}: starting again with {}{}{}", why_changed_, ranks_text(plan_.ranks.size()),
          plan_.ranks.size() == size_before ? "" : fmt::format(" instead of {}", size_before),
          redone));
  why_changed_.clear();
  const json workers = plan_.workers;
  for (const int task : std::vector<int>(world_)) {
    Member& member = members_[task];
    member.rank_running = true;
    member.client = member.finished = false;
    member.arrived.reset();
    order(task, {{"op", "start"}, {"generation", generation_}, {"workers", workers}});
  }
}

// --- workers that come

void Coordinator::client_appeared(int task) {
  if (!elastic()) return;
  if (in_world(task)) start_standbys();
}

// Starts the program on workers that wait, as soon as it is known to be one that can join.
void Coordinator::start_standbys() {
  if (!may_change() || stopping_ || some_finished_ || phase_ == Phase::kEnding) return;
  if (phase_ != Phase::kGathering && !all_clients()) return;
  for (const auto& [task, member] : std::map(members_))
    if (member.connected && !member.rank_running && !member.leaving && !in_world(task))
      start_standby(task);
}

void Coordinator::start_standby(int task) {
  Member& member = members_[task];
  if (!may_change() || some_finished_ || phase_ == Phase::kEnding || !member.connected) return;
  member.rank_running = true;
  member.client = member.finished = false;
  member.arrived.reset();
  std::vector<int> tasks = world_;
  for (const auto& [other, one] : members_)
    if (!contains(tasks, other) && one.connected && !one.leaving) tasks.push_back(other);
  std::sort(tasks.begin(), tasks.end());
  order(task, {{"op", "start"}, {"generation", generation_ + 1}, {"workers", cards_of(tasks)}});
}

int Coordinator::joiners_ready() const {
  int ready = 0;
  for (const auto& [task, member] : members_) {
    if (in_world(task) || !member.connected || member.leaving) continue;
    if (all_clients() ? member.arrived.has_value() : !member.rank_running) ++ready;
  }
  return ready;
}

void Coordinator::consider_growth() {
  if (!may_change() || stopping_ || some_finished_ || phase_ != Phase::kRunning) return;
  const bool warm = all_clients();
  double last_joined = run_since_;
  for (const auto& [task, member] : members_) last_joined = std::max(last_joined, member.joined_at);
  const GrowthAnswer answer = decide_growth({.now = monotonic_seconds(),
                                             .size = static_cast<int>(world_.size()),
                                             .joining = joiners_ready(),
                                             .warm = warm,
                                             .run_since = run_since_,
                                             .world_since = world_since_,
                                             .checkpoint_at = checkpoint_at_,
                                             .last_growth = last_growth_,
                                             .last_joined = last_joined,
                                             .restart_seconds = restart_seconds_,
                                             .min_interval = options_.grow_interval});
  // Its ranks have not come to their first world yet: there the others meet them.
  if (warm && !gathered_) return;
  if (!answer.grow) {
    if (answer.ask_after <= 0) return;
    grow_timer_.expires_after(milliseconds(answer.ask_after + 0.01));
    grow_timer_.async_wait([this](const asio::error_code& error) {
      if (!error) consider_growth();
    });
    return;
  }
  if (!warm) return begin_cold(fmt::format("{} more to train with", joiners_ready()));
  phase_ = Phase::kAgreeing;
  at_checkpoint_ = true;
  why_changed_ = "GPUs have become free";
  for (const int task : std::vector<int>(world_))
    order(task, event_order({{"event", "change"}, {"when", "checkpoint"}}));
}

}  // namespace af
