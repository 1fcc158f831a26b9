// SPDX-License-Identifier: Apache-2.0
// Which GPUs this task has: what the driver shows, cut down to what Slurm gave.
//
// Agents of one step on one node all see the node's share of the job, so each lists the same GPUs;
// share_gpus() says which of them belong to which local rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/worker.h"

namespace af {

// Where a list of all GPUs of this node that the process can see comes from.
class GpuSource {
 public:
  virtual ~GpuSource() = default;
  // In Slurm's order: whole cards and MIG instances by card, so that a position in this list is the
  // number that SLURM_JOB_GPUS uses. Cards in MIG mode are left out, their instances are listed.
  // Throws Error if the source is there but broken.
  virtual std::vector<Gpu> all_gpus() = 0;
  virtual std::string name() const = 0;  // "nvml", "fake", "none"
};

// NVML by dlopen("libnvidia-ml.so.1"); null where the library or the driver is missing.
std::unique_ptr<GpuSource> nvml_gpu_source();
// The sandbox's invented GPUs, a JSON file; null where the file is missing.
std::unique_ptr<GpuSource> fake_gpu_source(const std::string& path = "/etc/af/fake-gpus.json");

// What Slurm says about this task's GPUs. A variable that is not set is nullopt: "" means none.
struct SlurmGpuEnvironment {
  bool in_slurm = false;
  std::optional<std::string> cuda_visible_devices;  // indices, GPU- or MIG-UUIDs
  std::optional<std::string> slurm_step_gpus;       // numbers: places in the node's gres.conf
  std::optional<std::string> slurm_job_gpus;
  std::optional<std::vector<int>> job_detail;  // the IDX of this node in `scontrol -d show job`
};

struct GpuResolution {
  std::vector<Gpu> gpus;
  std::vector<std::string> warnings;  // whole sentences for the person, without a prefix
};

// Pure. No single variable is believed: under cgroup ConstrainDevices the driver renumbers what is
// left from 0, without it a job may see every GPU of the node (untyped GRES, no device files), and
// some binding modes leave CUDA_VISIBLE_DEVICES empty. `all` empty: bare indices from the
// variables.
GpuResolution resolve_gpus(const std::vector<Gpu>& all, const SlurmGpuEnvironment& environment);

// Pure. GPU numbers of `node` in the text of `scontrol -d show job ID`; nullopt if it names none.
std::optional<std::vector<int>> job_detail_gpus(const std::string& text, const std::string& node);

// The effect: NVML, else the fake file, else the variables; asks scontrol only if no variable names
// a GPU. Safe to call from one thread at a time.
GpuResolution find_gpus();

// Pure. `seen[i]` are the GPUs that local rank i lists. All the same: dealt out in order, each rank
// `per_worker` of them (0: all, evenly). Disjoint lists (per-task binding): each keeps its own.
// Throws Error when there are fewer GPUs than ranks * per_worker.
std::vector<std::vector<Gpu>> share_gpus(const std::vector<std::vector<Gpu>>& seen, int per_worker);

}  // namespace af
