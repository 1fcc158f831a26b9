// SPDX-License-Identifier: Apache-2.0
// What a rank finds in its environment: pure, from the inherited one and the plan.
//
// Everything that a framework may look at agrees: torchrun's names, Slurm's names, TF_CONFIG and
// af's own. docs/launcher.md lists them for the person.
#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/environment.h"
#include "launcher/plan.h"

namespace af {

// What is the same for all ranks of an agent.
struct RunFacts {
  std::string run_id;
  int attempt = 0;
  int generation = 0;
  int max_workers = 0;  // 0: the size of the world
  bool elastic = false;
  std::string run_directory;
  std::string log_directory;   // of this generation
  std::string interface;       // of the node's address: "eth0"; empty = unknown
  int cpus_per_rank = 0;       // for OMP_NUM_THREADS; 0: unknown, leave it
  std::string shield_library;  // libaf_shield.so; empty: none
  std::string python_client;   // the folder that has the Python package `af`; empty: none
  pid_t slurmstepd = 0;        // 0: none above this process
};

// `socket` is the rank's AF_SOCKET. What the person set is kept where it is a choice (thread
// counts, network interfaces, checkpoint directory) and replaced where it must agree with the
// world.
Environment rank_environment(const Environment& inherited, const Plan& plan, const RankPlan& rank,
                             const RunFacts& facts, const std::string& socket);

// Slurm's short form of tasks per node: {2,2,1} -> "2(x2),1".
std::string tasks_per_node(const Plan& plan);

}  // namespace af
