// SPDX-License-Identifier: Apache-2.0
// The satellites of one elastic launch: submits, finds and cancels their Slurm jobs, so that as
// many are there or on their way as the coordinator wants. What follows from what is decided in
// satellite_reconcile.h; this class runs the commands, one at a time, and never blocks the loop.
//
// For the coordinator's thread alone (that of `io`); callbacks come from the loop or from within a
// call of the pool. It must live until its `stop` has called back, or until the loop has ended.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/satellite_reconcile.h"
#include "launcher/satellite_submission.h"
#include "launcher/slurm_commands.h"

namespace af {

struct SatellitePoolOptions {
  SatelliteFacts facts;
  // Seconds until the anchor's end as Slurm has it now; null, or infinite: not known.
  std::function<double()> seconds_left;
  // For tests: a number from 0 to 1 for the pauses, and the clock in seconds. Null: real ones.
  std::function<double()> jitter;
  std::function<double()> now;
};

class SatellitePool {
 public:
  // For the journal: satellite_submitted {job, name}, satellite_ended {job, state, …}, …
  // (events.md).
  using OnEvent = std::function<void(const std::string& event, const nlohmann::json& fields)>;
  // For the person, each thing once.
  using Say = std::function<void(const std::string& text)>;

  SatellitePool(asio::io_context& io, SlurmCommands& slurm, SatellitePoolOptions options,
                OnEvent on_event, Say say);

  // Makes the directory of the satellites' output and begins. Before that nothing is done.
  // Throws Error if the directory cannot be made. The run's secret must be there by now.
  void start();
  // Satellites beside the anchor: at first 0.
  void set_wanted(int satellites);
  // An agent with this SLURM_JOB_ID is connected; `node` is where (SLURMD_NODENAME).
  void agent_joined(const std::string& job, const std::string& node);
  // It has gone, after `lifetime` seconds. `explained`: it had a notice or was told to leave, so
  // that nothing is wrong with its node.
  void agent_left(const std::string& job, double lifetime, bool explained);
  // Submits no more and cancels what is pending; then, or after 5 s, calls `done` from the loop.
  // Those that run are left to the coordinator's word and to cancel_satellites().
  void stop(std::function<void()> done);

  // Satellites that are there or on their way, as far as it is known.
  int counted() const { return satellites_counted(state_); }
  const PoolState& state() const { return state_; }

 private:
  void step();
  void act(const PoolAction& action);
  void report(const PoolReports& reports);
  void command_over();
  void cancel_pending();
  void stopped();
  double now() const;
  double jitter() const;
  double seconds_left() const;

  asio::io_context& io_;
  SlurmCommands& slurm_;
  SatellitePoolOptions options_;
  OnEvent on_event_;
  Say say_;
  PoolState state_;
  asio::steady_timer timer_;
  bool started_ = false;
  bool busy_ = false;       // a command runs
  bool submitted_ = false;  // sbatch was called at all
  bool stopping_ = false;
  std::function<void()> done_;
};

}  // namespace af
