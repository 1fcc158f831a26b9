// SPDX-License-Identifier: Apache-2.0
// A coordinator under events in any order: agents and ranks that behave as the protocol says
// (docs/session-protocol.md), with delays, and faults of every kind for a while. Then the faults
// end, and so must the run.
//
// More seeds: AF_SEEDS=5000. One again, with what happened: AF_SEED=17 build/tests/unit/launcher
// --gtest_filter='CoordinatorRandom.*'
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <random>
#include <set>

#include "launcher/coordinator.h"
#include "launcher/exit_codes.h"
#include "launcher/plan.h"
#include "launcher/worker_json.h"
#include "tests/unit/launcher/coordinator_run.h"

namespace af {
namespace {

using nlohmann::json;

constexpr double kTick = 0.05;
constexpr int kCheckpointEvery = 10;  // steps

// A rank's program, as far as others can see it.
struct Program {
  enum class At { kNone, kBooting, kTraining, kWaiting };
  At at = At::kNone;
  bool client = false;  // has said hello
  int generation = -1;  // of the world that it is in; -1: none yet
  int rank = 0, size = 0;
  int64_t step = -1;
  double ready = 0;       // booted, or in the new world
  double stuck_till = 0;  // busy: hears nothing
  double dies = 0;        // 0: goes on
  int death_code = 0, death_signal = 0;
  bool change = false, at_checkpoint = false, save = false;
  bool first = true;  // the next step is its first in this world
};

struct FakeAgent {
  bool connected = true;
  bool satellite = false;
  bool silent = false;  // stopped, or cut off; its rank trains on
  double silent_since = 0;
  double gone_at = 0;        // its job is killed
  int last_generation = -1;  // of its orders
  std::deque<std::pair<double, json>> to_it, from_it;
  Program program;
};

class Simulation {
 public:
  Simulation(unsigned seed, bool clients)
      : random_(seed), clients_(clients), run_({.max_workers = 4}, [this](int task, const json& o) {
          agents_[task].to_it.emplace_back(later(), o);
        }) {
    boot(agents_[0], 0, 1, 0);
    steps_ = 600;
    rate_ = std::pow(10, uniform(-2.5, -1));
  }

  // Gives what went wrong; empty: nothing.
  std::string run() {
    const double calm = 1000 + 20 + uniform(0, 60);
    const double limit = calm + 900;
    while (!run_.code && problem_.empty()) {
      if (CoordinatorRun::now() > limit) {
        problem_ = "everybody waits";
        break;
      }
      if (CoordinatorRun::now() < calm) faults();
      // GPUs become free again.
      if (!run_.satellites.stopped && chance(0.02)) join();
      for (auto& [task, agent] : agents_) live(task, agent);
      train();
      run_.pass(kTick);
    }
    if (problem_.empty()) check_journal();
    return problem_;
  }
  std::string story() {
    std::string text;
    for (const json& line : run_.journal()) text += line.dump().substr(0, 220) + "\n";
    for (const auto& [task, agent] : agents_)
      text += "task " + std::to_string(task) + (agent.connected ? "" : " gone") + " at " +
              std::to_string(static_cast<int>(agent.program.at)) + " generation " +
              std::to_string(agent.program.generation) + " step " +
              std::to_string(agent.program.step) + "\n";
    return text + run_.said();
  }
  int worlds() { return static_cast<int>(run_.journal("world_formed").size()); }
  int code() const { return run_.code.value_or(-1); }
  bool fatal = false;  // something happened that may end the run with an error

 private:
  double uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  double later() { return CoordinatorRun::now() + uniform(0, 0.2); }

  // --- faults
  void faults() {
    if (!chance(rate_)) return;
    std::vector<int> there;
    for (const auto& [task, agent] : agents_)
      if (agent.connected && !agent.silent) there.push_back(task);
    const int task =
        there[static_cast<size_t>(uniform(0, 0.999) * static_cast<double>(there.size()))];
    FakeAgent& agent = agents_[task];
    const int kind = static_cast<int>(uniform(0, 10));
    if (kind == 0 && agent.program.at != Program::At::kNone) {
      die(agent.program, 0, SIGKILL, 0);
    } else if (kind == 1 && task != 0) {
      agent.gone_at = CoordinatorRun::now();
    } else if (kind == 2 && task != 0) {
      agent.silent = true;
      agent.silent_since = CoordinatorRun::now();
      run_.silence(task);
    } else if ((kind == 3 || kind == 4) && task != 0) {
      agent.from_it.emplace_back(later(), json{{"op", "told"}, {"signal", SIGTERM}});
      agent.from_it.emplace_back(
          later(), json{{"op", "notice"}, {"reason", "preempted"}, {"deadline", 2000}});
      agent.gone_at = CoordinatorRun::now() + uniform(0, 5);
    } else if (kind == 5) {
      agent.program.stuck_till = CoordinatorRun::now() + uniform(0, 20);
    } else if (kind == 6 && clients_ && agent.program.generation >= 0) {
      arrive(task, agent);  // cannot form this world, or cannot go on in it
    } else if (kind == 7 && chance(0.2) && agent.program.at != Program::At::kNone) {
      fatal = true;
      die(agent.program, 3, 0, 0);
    } else if (kind == 8 && chance(0.2)) {
      fatal = true;
      run_->save_all("time limit", 2000);
    } else if (kind == 9 && chance(0.1)) {
      fatal = true;
      run_->front_left();
    }
  }

  void join() {
    const int task = run_.join("job" + std::to_string(agents_.size()));
    if (task < 0) return;
    agents_[task].satellite = true;
  }

  // --- agents
  void live(int task, FakeAgent& agent) {
    if (!agent.connected) return;
    const double now = CoordinatorRun::now();
    if (agent.gone_at != 0 && now >= agent.gone_at) return disconnect(task, agent);
    if (agent.silent) {
      // Its coordinator gives it up; after some time it misses the coordinator, and ends.
      if (now > agent.silent_since + 11) {
        agent.connected = false;
        agent.program = {};
      }
      return;
    }
    while (!agent.from_it.empty() && agent.from_it.front().first <= now) {
      const json message = agent.from_it.front().second;
      agent.from_it.pop_front();
      run_.tell(task, message);
      if (message.value("op", "") == "gone") return disconnect(task, agent);
    }
    while (agent.connected && !agent.to_it.empty() && agent.to_it.front().first <= now) {
      const json order = agent.to_it.front().second;
      if (now < agent.program.stuck_till && agent.program.at != Program::At::kNone &&
          (order.value("op", "") == "event" || order.value("op", "") == "world"))
        break;  // its program does not read
      agent.to_it.pop_front();
      obey(task, agent, order);
    }
    Program& program = agent.program;
    if (program.at == Program::At::kNone) return;
    if (program.dies != 0 && now >= program.dies) return rank_exit(agent);
    if (now < program.stuck_till) return;
    if (program.at == Program::At::kBooting && now >= program.ready) {
      if (clients_) {
        program.client = true;
        say(agent, {{"op", "client"}});
        arrive(task, agent);
      } else {
        program.at = Program::At::kTraining;
      }
    }
  }

  void disconnect(int task, FakeAgent& agent) {
    agent.connected = false;
    agent.program = {};
    run_.lose(task);
  }

  void say(FakeAgent& agent, const json& message) {
    const double at =
        agent.from_it.empty() ? later() : std::max(agent.from_it.back().first, later());
    agent.from_it.emplace_back(at, message);
  }

  void boot(FakeAgent& agent, int rank, int size, int generation) {
    agent.program = {};
    agent.program.at = Program::At::kBooting;
    agent.program.rank = rank;
    agent.program.size = size;
    agent.program.ready = CoordinatorRun::now() + uniform(0.1, 1.5);
    if (!clients_) agent.program.generation = generation;
    agent.program.step = clients_ ? -1 : saved_;
  }

  void obey(int task, FakeAgent& agent, const json& order) {
    const std::string op = CoordinatorRun::name_of(order);
    Program& program = agent.program;
    const json event = order.value("event", json::object());
    if (op == "start" || op == "world") {
      const int generation = order["generation"];
      // A rank that waits beside the world is started as if it were in the next one.
      if (generation < agent.last_generation ||
          (op == "start" && !clients_ && generation == agent.last_generation))
        problem_ = "task " + std::to_string(task) + " was in world " +
                   std::to_string(agent.last_generation) + " when told of " + order.dump();
      agent.last_generation = generation;
      PlanOptions options;
      options.elastic = true;
      const Plan plan = make_plan(order["workers"].get<std::vector<Worker>>(), options);
      int rank = -1;
      for (const RankPlan& one : plan.ranks)
        if (one.task == task) rank = one.rank;
      if (rank < 0) problem_ = "task " + std::to_string(task) + " is not in " + order.dump();
      const int size = static_cast<int>(plan.ranks.size());
      if (op == "start") {
        if (chance(0.02) && agent.satellite) {
          program = {};
          return say(agent, {{"op", "cannot_start"}, {"why", "no such file"}, {"code", 126}});
        }
        return boot(agent, rank, size, generation);
      }
      if (program.at == Program::At::kNone) return;  // it has died meanwhile
      if (program.at != Program::At::kWaiting)
        problem_ = "task " + std::to_string(task) + " has not arrived, but gets " + order.dump();
      program.at = Program::At::kTraining;
      program.generation = generation;
      program.rank = rank;
      program.size = size;
      program.first = true;
      program.change = program.at_checkpoint = false;
      program.ready = CoordinatorRun::now() + uniform(0, 0.2);
      int64_t furthest = -1;
      for (const json& member : order["members"])
        furthest = std::max(furthest, member["step"].get<int64_t>());
      program.step = std::max<int64_t>(furthest, 0);
    } else if (op == "end") {
      if (program.at == Program::At::kNone) return;
      const double grace = order.value("grace", 0.0);
      die(program, 0, program.stuck_till > CoordinatorRun::now() ? SIGKILL : SIGTERM,
          chance(0.5) ? grace : 0);
    } else if (op == "exit") {
      disconnect(task, agent);
    } else if (op == "save") {
      program.save = true;
      if (program.at == Program::At::kBooting || !program.client)
        die(program, 0, SIGTERM, uniform(0, 2));
    } else if (op == "change") {
      (event["when"] == "step" ? program.change : program.at_checkpoint) = true;
    } else if (op == "lost") {
      if (program.at == Program::At::kTraining && event["generation"] == program.generation)
        arrive(task, agent);
    } else if (op == "leave") {
      die(program, 0, 0, 0);
    }
  }

  // --- ranks
  static void die(Program& program, int code, int signal, double after) {
    const double when = CoordinatorRun::now() + after;
    if (program.dies != 0 && program.dies <= when) return;
    program.dies = when;
    program.death_code = code;
    program.death_signal = signal;
  }

  void rank_exit(FakeAgent& agent) {
    Program& program = agent.program;
    // A plain program often fails of its peer's end.
    if (!clients_ && program.death_signal != SIGTERM)
      for (auto& [other, one] : agents_)
        if (&one != &agent && one.program.at == Program::At::kTraining &&
            one.program.generation == program.generation && chance(0.5) && program.step < steps_)
          die(one.program, 1, 0, uniform(0, 0.3));
    say(agent, {{"op", "rank_exit"},
                {"rank", program.rank},
                {"host", "n"},
                {"code", program.death_code},
                {"signal", program.death_signal}});
    program = {};
  }

  void arrive(int, FakeAgent& agent) {
    Program& program = agent.program;
    if (program.at == Program::At::kNone || program.dies != 0) return;
    if (program.at == Program::At::kWaiting) return;
    program.at = Program::At::kWaiting;
    say(agent, {{"op", "arrive"},
                {"generation", program.generation},
                {"step", program.step},
                {"in_step", chance(0.5)}});
  }

  // One step of every world whose ranks are all there.
  void train() {
    std::map<int, std::vector<int>> worlds;
    const double now = CoordinatorRun::now();
    for (auto& [task, agent] : agents_)
      if (agent.connected && agent.program.at == Program::At::kTraining &&
          agent.program.dies == 0 && now >= agent.program.ready && now >= agent.program.stuck_till)
        worlds[agent.program.generation].push_back(task);
    int training = 0;
    for (const auto& [generation, tasks] : worlds) {
      if (static_cast<int>(tasks.size()) != agents_[tasks[0]].program.size) continue;
      if (++training > 1) problem_ = "two worlds train at a time";
      if (generation < newest_)
        problem_ = "world " + std::to_string(generation) + " trains after world " +
                   std::to_string(newest_);
      newest_ = generation;
      one_step(tasks);
    }
  }

  void one_step(const std::vector<int>& tasks) {
    bool change = false, save = false;
    const int64_t step = agents_[tasks[0]].program.step + 1;
    const bool checkpoint = step % kCheckpointEvery == 0;
    for (const int task : tasks) {
      Program& program = agents_[task].program;
      if (program.step + 1 != step) problem_ = "ranks of one world are at different steps";
      change |= program.change || (checkpoint && program.at_checkpoint);
      save |= program.save;
      if (!clients_ && program.dies != 0) return;
    }
    if (checkpoint) saved_ = step;
    // A reduction may complete on some ranks only.
    const bool breaks = clients_ && tasks.size() > 1 && chance(step >= steps_ ? 0.3 : rate_ / 5);
    const size_t does = static_cast<size_t>(uniform(0, 0.999) * static_cast<double>(tasks.size()));
    for (size_t i = 0; i < tasks.size(); ++i) {
      const int task = tasks[i];
      FakeAgent& agent = agents_[task];
      Program& program = agent.program;
      if (breaks && i != does && chance(0.7)) {
        arrive(task, agent);
        continue;
      }
      program.step = step;
      if (clients_ && std::exchange(program.first, false))
        say(agent, {{"op", "first_step"}, {"generation", program.generation}, {"step", step}});
      if (checkpoint && program.rank == 0)
        say(agent, {{"op", "checkpoint"}, {"path", "x"}, {"step", step}, {"rank", 0}});
      if (save && clients_) {
        say(agent, {{"op", "saved"}, {"path", "x"}, {"step", step}});
        die(program, 0, 0, uniform(0, 1));
      } else if (step >= steps_) {
        if (clients_) say(agent, {{"op", "finished"}});
        die(program, 0, 0, uniform(0, 1));
      } else if (change && clients_) {
        arrive(task, agent);
      }
    }
  }

  void check_journal() {
    bool open = false;
    int last = -1;
    const auto lines = run_.journal();
    for (const json& line : lines) {
      if (line["event"] == "world_formed") {
        if (line["generation"].get<int>() <= last || (open && line["because"] != "start"))
          problem_ = "two worlds: " + line.dump();
        open = true;
        last = line["generation"];
      }
      if (line["event"] == "world_ended" && !std::exchange(open, false))
        problem_ = "an end without a world: " + line.dump();
    }
    if (open) problem_ = "a world without an end";
    if (lines.back()["event"] != "run_end") problem_ = "run_end is not the last line";
    for (const auto& [task, agent] : agents_)
      if (task != 0 && agent.connected && !agent.silent && problem_.empty())
        problem_ = "task " + std::to_string(task) + " is left behind";
  }

  std::mt19937 random_;
  bool clients_;
  std::map<int, FakeAgent> agents_;
  CoordinatorRun run_;
  std::string problem_;
  double rate_ = 0;  // of faults, for each tick
  int64_t steps_ = 0, saved_ = 0;
  int newest_ = -1;
};

class CoordinatorRandom : public testing::TestWithParam<bool> {};

TEST_P(CoordinatorRandom, EveryRunComesToItsEnd) {
  const char* one = std::getenv("AF_SEED");
  const unsigned first = one != nullptr ? static_cast<unsigned>(std::atoi(one)) : 1;
  const char* many = std::getenv("AF_SEEDS");
  const unsigned last = one != nullptr    ? first
                        : many != nullptr ? static_cast<unsigned>(std::atoi(many))
                                          : 150;
  int finished = 0, problems = 0, worlds = 0;
  for (unsigned seed = first; seed <= last && problems < 5; ++seed) {
    Simulation simulation(seed, GetParam());
    const std::string problem = simulation.run();
    const bool well = simulation.code() == 0;
    finished += well;
    worlds += simulation.worlds();
    if (problem.empty()) continue;
    ++problems;
    ADD_FAILURE() << "seed " << seed << ": " << problem
                  << (one != nullptr ? "\n" + simulation.story() : "");
  }
  EXPECT_TRUE(one != nullptr || problems > 0 || finished > static_cast<int>(last) / 3) << finished;
  RecordProperty("finished", finished);
  RecordProperty("worlds", worlds);
}

INSTANTIATE_TEST_SUITE_P(Programs, CoordinatorRandom, testing::Bool(),
                         [](const auto& one) { return one.param ? "Clients" : "Plain"; });

}  // namespace
}  // namespace af
