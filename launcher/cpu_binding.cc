// SPDX-License-Identifier: Apache-2.0
#include "launcher/cpu_binding.h"

#include <hwloc.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

namespace af {
namespace {

// The kernel takes any mask length; this is twice its largest build-time CPU number.
constexpr int kMaskCpus = 16384;
constexpr int kWordBits = 8 * sizeof(unsigned long);

using Topology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&hwloc_topology_destroy)>;

Topology load_topology(bool with_pci) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Topology(nullptr, &hwloc_topology_destroy);
  Topology topology(raw, &hwloc_topology_destroy);
  if (with_pci) hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0) topology.reset();
  return topology;
}

std::vector<int> members(hwloc_const_bitmap_t set) {
  std::vector<int> result;
  if (set == nullptr) return result;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
    result.push_back(cpu);
  return result;
}

bool pairwise_disjoint(const std::vector<RankCpus>& ranks) {
  std::set<int> seen;
  for (const RankCpus& rank : ranks)
    for (const int cpu : rank.allowed)
      if (!seen.insert(cpu).second) return false;
  return true;
}

}  // namespace

std::vector<std::vector<int>> split_cpus(const std::vector<RankCpus>& ranks, int cpus_per_rank,
                                         const std::vector<std::vector<int>>& cores) {
  std::vector<std::vector<int>> result(ranks.size());
  if (ranks.empty() || cpus_per_rank <= 0) return result;
  if (ranks.size() > 1 && pairwise_disjoint(ranks)) return result;
  if (ranks.size() == 1 && static_cast<int>(ranks[0].allowed.size()) <= cpus_per_rank)
    return result;

  std::set<int> free;
  for (const RankCpus& rank : ranks) free.insert(rank.allowed.begin(), rank.allowed.end());
  if (free.size() < ranks.size() * static_cast<size_t>(cpus_per_rank)) return result;

  // Ranks that know where their GPU is choose first, or one that does not could take their place.
  std::vector<size_t> order;
  for (const bool knows : {true, false})
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      if (!ranks[rank].near_gpu.empty() == knows) order.push_back(rank);

  for (const size_t rank : order) {
    const auto usable = [&](int cpu) {
      return free.count(cpu) != 0 &&
             std::count(ranks[rank].allowed.begin(), ranks[rank].allowed.end(), cpu) != 0;
    };
    const auto near = [&](int cpu) {
      const auto& set = ranks[rank].near_gpu;
      return set.empty() || std::find(set.begin(), set.end(), cpu) != set.end();
    };
    // Four rounds: untouched cores near the GPU, then those whose other thread is taken, then the
    // same two farther away.
    for (int round = 0; round < 4; ++round) {
      for (const std::vector<int>& core : cores) {
        std::vector<int> open;
        for (const int cpu : core)
          if (usable(cpu) && near(cpu) == (round < 2)) open.push_back(cpu);
        const bool whole = open.size() == core.size();
        if (open.empty() || (round % 2 == 0) != whole) continue;
        for (const int cpu : open) {
          if (static_cast<int>(result[rank].size()) == cpus_per_rank) break;
          result[rank].push_back(cpu);
          free.erase(cpu);
        }
      }
    }
    if (static_cast<int>(result[rank].size()) < cpus_per_rank)  // the masks overlap only in part
      return std::vector<std::vector<int>>(ranks.size());
    std::sort(result[rank].begin(), result[rank].end());
  }
  return result;
}

int threads_for_rank(int cpus_per_rank, int usable_cpus) {
  return std::max(1, usable_cpus > 0 ? std::min(cpus_per_rank, usable_cpus) : cpus_per_rank);
}

std::vector<int> allowed_cpus() {
  unsigned long mask[kMaskCpus / kWordBits] = {};
  std::vector<int> result;
  // The system call itself: it has no fixed mask size, as cpu_set_t with its 1024 CPUs has.
  const long bytes = ::syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask);
  for (int cpu = 0; cpu < bytes * 8; ++cpu)
    if ((mask[cpu / kWordBits] >> (cpu % kWordBits) & 1) != 0) result.push_back(cpu);
  return result;
}

std::vector<std::vector<int>> cpu_cores() {
  std::vector<std::vector<int>> cores;
  const Topology topology = load_topology(false);
  if (!topology) return cores;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, core)) != nullptr)
    cores.push_back(members(core->cpuset));
  if (cores.empty())  // machines that do not tell their cores (some virtual ones)
    for (const int cpu : allowed_cpus()) cores.push_back({cpu});
  return cores;
}

std::vector<int> cpus_near_pci_device(const std::string& bus_id) {
  if (bus_id.empty()) return {};
  const Topology topology = load_topology(true);
  if (!topology) return {};
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology.get(), bus_id.c_str());
  if (device == nullptr) return {};
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology.get(), device);
  return place == nullptr ? std::vector<int>{} : members(place->cpuset);
}

bool bind_to_cpus(const std::vector<int>& cpus) noexcept {
  if (cpus.empty()) return true;
  // No allocation and no hwloc here: this runs between fork and exec of a process with threads.
  unsigned long mask[kMaskCpus / kWordBits] = {};
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMaskCpus) {
      errno = EINVAL;
      return false;
    }
    mask[cpu / kWordBits] |= 1UL << (cpu % kWordBits);
  }
  return ::syscall(SYS_sched_setaffinity, 0, sizeof(mask), mask) == 0;
}

}  // namespace af
