// SPDX-License-Identifier: Apache-2.0
// Which CPUs each rank of a node runs on: inside what Slurm gave, whole cores, near the rank's GPU.
#pragma once

#include <string>
#include <vector>

namespace af {

// What the division knows of one local rank.
struct RankCpus {
  std::vector<int> allowed;   // CPUs that Slurm gave its agent (affinity mask), sorted
  std::vector<int> near_gpu;  // CPUs of its GPU's NUMA node; empty = unknown
};

// Pure. One set of logical CPUs for each local rank, disjoint; all empty = do not bind.
// `cores`: the hardware threads of each core (cpu_cores()); a core is not shared by two ranks while
// there are enough. Ranks are left as they are when Slurm has bound each task by itself (disjoint
// `allowed`), and when the machine has fewer CPUs than the ranks were given (a site that pretends,
// such as the sandbox: binding would then only take CPUs away).
std::vector<std::vector<int>> split_cpus(const std::vector<RankCpus>& ranks, int cpus_per_rank,
                                         const std::vector<std::vector<int>>& cores);

// Threads that OMP_NUM_THREADS should name for a rank: what Slurm gave, but not more than exist.
int threads_for_rank(int cpus_per_rank, int usable_cpus);

// The effects. allowed_cpus(): the affinity mask of this process. cpu_cores(), numa_cpus(): hwloc;
// numa_cpus gives the CPUs near a PCI device "0000:3b:00.0", empty if unknown.
std::vector<int> allowed_cpus();
std::vector<std::vector<int>> cpu_cores();
std::vector<int> cpus_near_pci_device(const std::string& bus_id);

// Binds the calling thread (and what it forks or execs later). Async-signal-safe, for use between
// fork and exec. Empty: does nothing. False: the kernel refused (errno).
bool bind_to_cpus(const std::vector<int>& cpus) noexcept;

}  // namespace af
