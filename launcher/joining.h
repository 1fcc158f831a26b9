// SPDX-License-Identifier: Apache-2.0
// From an agent that knows itself to a world that knows all: run directory, bootstrap, plan.
#pragma once

#include <asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/authenticated_peer.h"
#include "launcher/launch_context.h"
#include "launcher/options.h"
#include "launcher/own_worker.h"
#include "launcher/plan.h"
#include "launcher/rank_process.h"
#include "launcher/run_directory.h"

namespace af {

struct Joined {
  Plan plan;
  PlanOptions plan_options;  // it was made with
  RunDirectory directory;
  std::string secret;
  PeerAddress coordinator;  // where task 0 listens; port 0 in a world of one agent
  // Of task 0, if there are other agents or may be: peers that connect before it is served wait in
  // the kernel.
  std::unique_ptr<AuthenticatedListener> listener;
  HeldPort master_port;               // of the agent of rank 0
  std::string bootstrap;              // "mpi", "tcp", "none"
  std::vector<std::string> warnings;  // of all agents, with their hosts

  // Instead of a plan: an agent cannot go on, so none does. The agent of task 0 says it.
  std::string problem;
  int code = 0;
};

// `program`: the answer for the command's program on this node, problem included.
// `on_peer` is called for agents that connect to this process later. Throws Error.
Joined join_world(const Options& options, const LaunchContext& context,
                  const Environment& environment, const ResolvedProgram& program, OwnWorker own,
                  asio::io_context& io, AuthenticatedListener::OnPeer on_peer);

}  // namespace af
