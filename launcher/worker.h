// SPDX-License-Identifier: Apache-2.0
// What the plan knows of a worker: plain data that each agent gathers about itself and exchanges at
// the bootstrap. Everything here travels as JSON (worker_json.h) and no field holds a secret.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace af {

// One GPU as a process sees it: a whole card, or one MIG instance of a card.
struct Gpu {
  std::string uuid;         // "GPU-…" or "MIG-…"; empty where nothing tells it
  std::string parent_uuid;  // the card: equal to uuid for a whole card
  std::string type;         // as Slurm or the driver calls it: "t4", "1g.5gb"
  int index = -1;           // CUDA/NVML index of the card, what CUDA_VISIBLE_DEVICES may hold
  double memory_gb = 0;     // total memory; 0 = unknown
  std::string driver;       // "535.129.03"; empty = unknown
  bool mig = false;
  std::vector<int> near_cpus;  // logical CPUs of its NUMA node; empty = unknown
};

// One worker: one Slurm task with its GPUs (none on a CPU-only node), and what runs there.
struct Worker {
  int task = -1;        // SLURM_PROCID: place in Slurm's order, 0-based
  std::string host;     // node name as Slurm has it
  std::string address;  // routable IPv4/IPv6 address of this node, never loopback if others exist
  uint16_t port = 0;    // bind-tested port of this node, held for MASTER_PORT
  std::vector<Gpu> gpus;
  std::vector<int> cpus;     // logical CPUs that Slurm gave the task
  std::string nccl_version;  // "2.18.3" of the library the ranks would load; empty = none found
  std::string af_version;
};

}  // namespace af
