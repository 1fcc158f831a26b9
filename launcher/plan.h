// SPDX-License-Identifier: Apache-2.0
// The plan of a world: from what the workers have to ranks, their GPUs, and how they talk.
//
// A pure function: every agent computes it from the same gathered workers and gets the same answer,
// so nothing has to be sent around. Tables of cases: tests/unit/launcher/plan_test.cc.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/worker.h"

namespace af {

// Who does the communication: it decides what a host-staged world falls back to.
enum class ProgramKind {
  kTorch,  // a PyTorch program that calls torch.distributed itself
  kAf,     // a program on af's library or client
};

struct PlanOptions {
  ProgramKind program = ProgramKind::kAf;
  int gpus_per_worker = 0;  // 0: what Slurm gave, divided by the workers of the node
  std::string backend;      // asked for with --backend; empty: decide
  bool elastic = false;     // workers come and go: their numbers have gaps
};

// One rank of the world. Rank r is started by the agent of task `task`.
struct RankPlan {
  int rank = 0;
  int task = 0;
  std::string host;
  int node_rank = 0;         // place of its node, in rank order
  int place_on_node = 0;     // the true local rank: 0 .. local_world_size-1
  int local_rank = 0;        // what LOCAL_RANK says: always a valid device number for the rank
  int local_world_size = 1;  // ranks on its node
  std::vector<Gpu> gpus;     // its own GPUs
  // CUDA_VISIBLE_DEVICES; nullopt leaves what is there (a rank without GPUs).
  std::optional<std::string> visible_devices;
  double gpu_memory_gb = 0;  // of its smallest GPU; 0 = no GPU or unknown
};

struct Plan {
  std::vector<Worker> workers;  // in rank order
  std::vector<RankPlan> ranks;
  std::vector<std::string> hosts;  // in node_rank order
  std::string backend;             // "nccl", "local", "gloo"
  std::string reason;              // why, for the person: "each card carries one rank"
  std::map<std::string, std::string> backend_environment;  // what the backend needs to be told
  std::vector<std::string> warnings;
  std::string master_address;
  uint16_t master_port = 0;
};

// `workers` in any order, task numbers each once, and 0..N-1 unless elastic. Throws Error for a
// world that cannot be: no workers, a task missing or double, two GPUs per worker on MIG instances,
// two versions of af.
Plan make_plan(std::vector<Worker> workers, const PlanOptions& options);

}  // namespace af
