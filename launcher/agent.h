// SPDX-License-Identifier: Apache-2.0
// An agent: starts its ranks, reads their output, serves their session sockets, hands signals to
// them, tells the coordinator how they ended, and leaves no process behind.
//
// Messages, one JSON object each (docs/design/launcher-protocol.md):
//   to the coordinator:  rank_exit, set, get, report, checkpoint, told (a signal came from Slurm)
//   from it:             signal, end (TERM, then KILL after a grace), exit (code), reply
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
  Plan plan;
  std::vector<int> ranks;              // that this agent starts
  std::vector<std::vector<int>> cpus;  // to bind each of them to; empty: not bound
  std::string program;                 // resolved path
  std::vector<std::string> command;    // argv of a rank
  Environment inherited;
  RunFacts facts;
  RunDirectory directory;
  std::string socket_prefix;  // of AF_SOCKET, unique on the node
  bool in_step = false;       // ranks must not hold the step's descriptors 0-2
};

class Agent {
 public:
  using Uplink = std::function<void(const nlohmann::json&)>;
  using OnFinished = std::function<void(int code)>;

  Agent(asio::io_context& io, OutputWriter& writer, AgentSetup setup, OnFinished on_finished);
  ~Agent();

  // Starts all ranks. Throws Error if one cannot be; those that run already go on until an order.
  void start();
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
  void start_one(size_t index);
  void read(Rank& rank, LogMerger::Stream stream);
  void drain(Rank& rank);
  void relay_stdin(Rank& rank);
  void rank_ended(Rank& rank, int status);
  void send(const nlohmann::json& message);
  void on_request(int rank, const nlohmann::json& request, const SessionServer::Reply& reply);
  void deliver(int signal);
  void end_ranks(double grace);
  bool any_running() const;

  asio::io_context& io_;
  OutputWriter& writer_;
  AgentSetup setup_;
  OnFinished on_finished_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Uplink uplink_;
  std::deque<nlohmann::json> unsent_;
  std::map<int64_t, SessionServer::Reply> waiting_;  // by ref, until the coordinator answers
  int64_t next_ref_ = 1;
  SignalGate gate_;
  asio::steady_timer kill_timer_;
  int abandoned_code_ = 0;
  bool finished_ = false;
};

}  // namespace af
