// SPDX-License-Identifier: Apache-2.0
// What a satellite pool asks of Slurm. An interface, so that the pool is tested without a cluster.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/child_command.h"
#include "launcher/satellite_submission.h"

namespace af {

class SlurmCommands {
 public:
  // Called once, from the loop, never from within the call that started the command.
  using OnEnd = std::function<void(ChildResult)>;
  virtual ~SlurmCommands() = default;

  virtual void submit(const SubmissionCommand& submission, OnEnd on_end) = 0;
  // Jobs of this name and of this user, those that have ended a while ago included.
  virtual void look_up(const std::string& name, OnEnd on_end) = 0;
  // `jobs`: of this name only these, if they have it; empty: all.
  virtual void cancel(const std::string& name, const std::vector<std::string>& jobs,
                      bool pending_only, OnEnd on_end) = 0;
  // Ends what runs; its on_end is not called.
  virtual void abandon() = 0;
};

// The real ones: child processes with an environment made from nothing, 30 s for each. `inherited`
// gives PATH, HOME, SLURM_CONF and the like. For one thread, that of `io`.
std::unique_ptr<SlurmCommands> slurm_commands(asio::io_context& io, const Environment& inherited);

}  // namespace af
