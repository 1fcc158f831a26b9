// SPDX-License-Identifier: Apache-2.0
// The coordinator of a world: lives in the agent of task 0, knows all agents, keeps the keys, the
// journal and the outcome, and gives the orders.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "launcher/journal.h"
#include "launcher/key_store.h"
#include "launcher/output_writer.h"
#include "launcher/plan.h"
#include "launcher/signal_gate.h"
#include "launcher/world_outcome.h"

namespace af {

class Coordinator {
 public:
  using Send = std::function<void(const nlohmann::json&)>;
  using OnOver = std::function<void(int code)>;

  // `on_over` is called when every rank has ended and every other agent has left.
  // `own_tasks`: those whose agent lives in this process (outside Slurm one agent stands for all);
  // it is told to exit by on_over's caller.
  Coordinator(asio::io_context& io, OutputWriter& writer, Journal& journal, const Plan& plan,
              std::set<int> own_tasks, double grace, OnOver on_over);

  void begin();  // the world is formed: ranks are being started
  void agent_joined(int task, Send send);
  void on_message(int task, const nlohmann::json& message);
  void agent_left(int task, const std::string& how);
  // From the front: for all ranks.
  void signal_all(int signal, const std::string& route);
  void front_left();

 private:
  void cannot_start(int task, const nlohmann::json& message);
  void rank_exit(const nlohmann::json& message);
  void told(int task, int signal);
  void note_stop(int signal);
  void get(int task, const nlohmann::json& message);
  void reply(int task, const nlohmann::json& message, const nlohmann::json& answer);
  void broken(const std::string& how, int code, const std::vector<int>& ranks_gone);
  void end_world();
  void order_all(const nlohmann::json& order);
  void check_over();
  void close_world();
  void explain_failure();
  bool others_have_left() const;
  std::vector<int> ranks_of(int task) const;
  std::string host_of(int task) const;

  asio::io_context& io_;
  OutputWriter& writer_;
  Journal& journal_;
  const Plan& plan_;
  std::set<int> own_tasks_;
  double grace_;
  OnOver on_over_;
  WorldOutcome outcome_;
  KeyStore keys_;
  SignalGate gate_;
  std::map<int, Send> agents_;
  std::set<int> gone_;
  bool closing_ = false;
  asio::steady_timer join_timer_, stop_timer_, leave_timer_;
};

}  // namespace af
