// SPDX-License-Identifier: Apache-2.0
// The coordinator of a run: lives in the agent of task 0, knows all agents, keeps the keys, the
// journal and the outcome, gives the orders, and forms one world after another.
//
// coordinator.cc has what every run needs; world_changes.cc has the way from one world to the next
// (docs/design/elastic.md). What is a decision is in elasticity.h and world_outcome.h.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/clock.h"
#include "launcher/elasticity.h"
#include "launcher/journal.h"
#include "launcher/key_store.h"
#include "launcher/output_writer.h"
#include "launcher/plan.h"
#include "launcher/signal_gate.h"
#include "launcher/world_outcome.h"

namespace af {

// Who gets more workers, from where and how is not the coordinator's business.
class Satellites {
 public:
  virtual ~Satellites() = default;
  virtual void set_wanted(int number) = 0;  // running and pending ones together
  virtual void joined(const std::string& job, const std::string& node) = 0;
  // `explained`: it had a notice, was told to leave, or had worked: nothing is wrong with its node.
  virtual void left(const std::string& job, double lifetime_seconds, bool explained) = 0;
  virtual void stop() = 0;  // submits no more, and cancels what is pending
};

struct CoordinatorOptions {
  // Those whose agent lives in this process (outside Slurm one agent stands for all); it is told to
  // exit by on_over's caller.
  std::set<int> own_tasks;
  double grace = 5;  // seconds from TERM to KILL for ranks that are ended
  PlanOptions plan;  // for later worlds; plan.elastic: workers come and go
  int generation = 0;
  int max_workers = 1;
  double grow_interval = 30;                            // seconds between two growths at the least
  std::function<void(const nlohmann::json&)> to_front;  // null: nobody is there
};

class Coordinator {
 public:
  using Send = std::function<void(const nlohmann::json&)>;
  using OnOver = std::function<void(int code)>;

  // `on_over` is called when every rank has ended and every other agent has left.
  // `satellites`: null if there are none to be had; has to outlive this object.
  Coordinator(asio::io_context& io, OutputWriter& writer, Journal& journal, const Plan& plan,
              CoordinatorOptions options, Satellites* satellites, OnOver on_over);

  void begin();  // the first world: its ranks are being started
  void agent_joined(int task, Send send, std::function<void()> close = nullptr);
  // A worker of another job has come: gives its number, or nothing (and why) if it is not wanted.
  std::optional<int> satellite_joined(const std::string& job, Worker card, Send send,
                                      std::function<void()> close, std::string& why_not);
  void on_message(int task, const nlohmann::json& message);
  void agent_left(int task, const std::string& how);
  // A program that is no client has written one.
  void checkpoint_seen(const std::string& path);
  // From the front: for all ranks.
  void signal_all(int signal, const std::string& route);
  // The whole job ends soon: all ranks save and leave. `deadline`: seconds since 1970, or null.
  void save_all(const std::string& reason, const nlohmann::json& deadline);
  void front_left();
  // For the front, at the end: finished, saved, progress, own_fault.
  nlohmann::json exit_facts() const;

 private:
  struct Arrival {
    int generation = -1;
    int64_t step = -1;
    bool in_step = false;
  };
  struct Member {
    Worker card;
    Send send;
    std::function<void()> close;
    bool connected = false;
    bool satellite = false;  // of another job
    std::string job;         // empty outside Slurm
    double joined_at = 0, last_beat = 0;
    bool worked = false;   // its rank took a step, or was there when the run made progress
    bool leaving = false;  // its GPU is being taken back, or it is not needed
    std::string why_leaving;
    int deaths = 0;  // of its ranks, since the last progress
    // Its rank (elastic: one for each member).
    bool rank_running = false;
    bool client = false;
    bool finished = false;  // it needs the others no more
    std::optional<Arrival> arrived;
  };
  enum class Phase {
    kRunning,
    kGathering,  // clients have come for their first world, more are on their way
    kAgreeing,   // told to change; they agree on a step and arrive
    kLost,       // the world is lost; they arrive
    kEnding,     // ranks are being ended, to be started in the next world
  };

  // --- coordinator.cc
  void cannot_start(int task, const nlohmann::json& message);
  void rank_exit(int task, const nlohmann::json& message);
  void fixed_rank_exit(const RankEnd& end);
  void told(int task, int signal);
  void note_stop(int signal);
  bool told_to_stop() const { return stopping_ || outcome_.stopped_by() != 0; }
  void take_message(int task, const nlohmann::json& message);
  void set(int task, const nlohmann::json& message);
  void get(int task, const nlohmann::json& message);
  void reply(int task, const nlohmann::json& message, const nlohmann::json& answer);
  void progress();
  void broken(const std::string& how, int code, const std::vector<int>& ranks_gone);
  void fail(const RankEnd& end);
  void say_allowed(const RankEnd& end);
  void end_world();
  void order(int task, const nlohmann::json& order);
  void order_all(const nlohmann::json& order);
  void check_over();
  void close_world();
  void explain_failure();
  bool others_have_left() const;
  std::vector<int> ranks_of(int task) const;
  int rank_of(int task) const;  // the first of them; -1: none
  std::string host_of(int task) const;
  std::string name_of(int task) const;  // "worker 2 on n3"
  void beat();
  double silence_allowed() const;
  void journal_world(bool warm, const std::string& why);

  // --- world_changes.cc
  bool elastic() const { return options_.plan.elastic; }
  // The order to save may still be on its way: a rank that a signal has told itself does not wait.
  bool told_to_end() const { return stopping_ || outcome_.stopped_by() != 0; }
  bool may_change() const { return elastic() && !finishing_ && !closing_; }
  bool in_world(int task) const;
  bool all_clients() const;
  std::vector<int> world_tasks() const;
  int joiners_ready() const;
  void elastic_rank_exit(int task, const RankEnd& end);
  void elastic_agent_left(int task, const std::string& how);
  void arrive(int task, const Arrival& arrival);
  void client_appeared(int task);
  void satellite_told(int task, const nlohmann::json& deadline);
  void drop_from_world(int task);
  void count_lost();
  void worker_gone(int task, const std::string& how);
  void add_reason(const std::string& why);
  void begin_lost(const std::string& why);
  void free_stragglers(const std::string& why);
  void begin_cold(const std::string& why);
  void await_arrivals(double seconds);
  void check_arrivals();
  void check_left_behind();
  void check_gathered();
  void check_ended();
  void enter_world(Plan plan, bool warm);
  void form_world(const std::vector<int>& who);
  void start_world();
  void start_standby(int task);
  void start_standbys();
  void consider_growth();
  void settle_exit(int task, const RankEnd& end);
  void judge_exits();
  void give_up(const RankEnd& end, const std::string& why);
  void restart_or_fail(EndCause cause, const RankEnd& end);
  void release(int task, const std::string& why);
  std::vector<Worker> cards_of(const std::vector<int>& tasks) const;

  asio::io_context& io_;
  OutputWriter& writer_;
  Journal& journal_;
  Plan plan_;  // of the current world
  CoordinatorOptions options_;
  Satellites* satellites_;
  OnOver on_over_;
  WorldOutcome outcome_;
  KeyStore keys_;
  SignalGate gate_;
  std::map<int, Member> members_;
  std::set<int> gone_;
  bool closing_ = false;
  Timer join_timer_, stop_timer_, leave_timer_, beat_timer_;
  double next_beat_ = 0;

  Phase phase_ = Phase::kRunning;
  int generation_;
  int next_task_ = 0;
  std::vector<int> world_;  // tasks in the current world that have not been lost, elastic
  bool world_lost_ = false;
  bool gathered_ = false;       // clients: they have had a world since they were started
  bool awaiting_ = false;       // arrive_timer_ runs
  bool at_checkpoint_ = false;  // the change that was asked for takes joiners in
  bool finishing_ = false;      // the program needs no more worlds
  bool some_finished_ = false;  // the world is of those that have not: nobody joins any more
  bool stopping_ = false;       // the whole job is being taken
  bool saved_ = false;
  bool own_fault_ = false;
  bool progressed_ = false;  // a checkpoint or a report in this attempt
  int max_failures_ = 0, own_faults_ = 0;
  int fruitless_ = 0;     // restarts since the last progress
  int empty_worlds_ = 0;  // warm worlds in a row without a step
  double run_since_ = 0, world_since_ = 0, ended_at_ = 0, gather_since_ = 0, last_loss_ = -1e9;
  double cut_off_till_ = 0;  // a world that nobody can reach is over by then
  double restart_seconds_ = 10;
  bool restart_measured_ = false;
  std::optional<double> checkpoint_at_, last_growth_;
  std::string why_changed_;
  std::map<int, RankEnd> unexplained_;  // exits that may be the consequence of a loss
  std::map<std::string, int> losses_;   // by node: workers that had worked
  Timer arrive_timer_, gather_timer_, settle_timer_, grow_timer_;
};

}  // namespace af
