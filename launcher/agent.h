// SPDX-License-Identifier: Apache-2.0
// An agent: starts its ranks, reads their output, serves their session sockets, hands signals to
// them, tells the coordinator how they ended, and leaves no process behind. In an elastic run its
// rank may live through several worlds, or be started anew in the next.
//
// Messages: docs/design/launcher-protocol.md and docs/design/elastic.md.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/log_merger.h"
#include "launcher/output_writer.h"
#include "launcher/plan.h"
#include "launcher/rank_environment.h"
#include "launcher/run_directory.h"
#include "launcher/session_server.h"
#include "launcher/signal_gate.h"

namespace af {

struct AgentSetup {
  int worker = 0;          // own number: the task of the plan's ranks that this agent starts
  bool all_ranks = false;  // outside Slurm one agent starts all of them
  PlanOptions plan_options;
  std::string program;               // resolved path
  std::vector<std::string> command;  // argv of a rank
  Environment inherited;
  RunFacts facts;
  RunDirectory directory;
  std::string socket_prefix;  // of AF_SOCKET, unique on the node
  bool in_step = false;       // ranks must not hold the step's descriptors 0-2
  bool relay_stdin = true;    // rank 0 gets this process's input
};

class Agent {
 public:
  using Uplink = std::function<void(const nlohmann::json&)>;
  using OnFinished = std::function<void(int code)>;

  Agent(asio::io_context& io, OutputWriter& writer, AgentSetup setup, OnFinished on_finished);
  ~Agent();

  // Starts this agent's ranks of a world; what is left of an earlier one is ended first.
  // Throws Error if one cannot be; those that run already go on until an order.
  void start(const Plan& plan, int generation);
  std::vector<int> not_started() const;  // ranks of this agent
  // Where messages go; those of before were kept.
  void set_uplink(Uplink uplink);
  void on_order(const nlohmann::json& order);
  // From Slurm or a person: `route` says by which way (signal_gate.h).
  void on_signal(int signal, const std::string& route);
  void on_child_exit();  // SIGCHLD
  // The coordinator, or the keeper around this process, has gone: ends the ranks, and finishes.
  void abandon(const std::string& why, int code);
  // Ends every process below, flushes all output, and calls on_finished.
  void finish(int code);

 private:
  struct Rank;
  struct Output;
  void clear_ranks();
  void start_one(const Plan& plan, const RankPlan& rank_plan, const std::vector<int>& cpus);
  void start_ordered(const nlohmann::json& order);
  void move_to_world(const nlohmann::json& order);
  void tell_clients(const nlohmann::json& event);
  void save(const nlohmann::json& order);
  void watch_stopped();
  Plan plan_of(const nlohmann::json& order) const;
  void read(Rank& rank, LogMerger::Stream stream);
  void drain(Rank& rank);
  void relay_stdin(Rank& rank);
  void rank_ended(Rank& rank, int status);
  void send(const nlohmann::json& message);
  void on_request(Rank& rank, const nlohmann::json& request, const SessionServer::Reply& reply);
  void on_client(Rank& rank, const std::string& op, const nlohmann::json& request,
                 const SessionServer::Reply& reply);
  void deliver(int signal, bool to_clients = true);
  void end_ranks(double grace);
  bool any_running() const;

  asio::io_context& io_;
  OutputWriter& writer_;
  AgentSetup setup_;
  OnFinished on_finished_;
  std::vector<int> own_ranks_;  // of the current world
  std::vector<std::unique_ptr<Rank>> ranks_;
  int next_socket_ = 0;
  Uplink uplink_;
  std::deque<nlohmann::json> unsent_;
  std::map<int64_t, SessionServer::Reply> waiting_;  // by ref, until the coordinator answers
  int64_t next_ref_ = 1;
  SignalGate gate_;
  asio::steady_timer kill_timer_, stopped_timer_;
  int abandoned_code_ = 0;
  bool finished_ = false;
};

}  // namespace af
