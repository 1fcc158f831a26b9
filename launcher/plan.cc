// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "common/error.h"
#include "launcher/backend_choice.h"

namespace af {
namespace {

void check(const std::vector<Worker>& workers, bool gaps) {
  if (workers.empty()) throw Error("there are no workers: nothing to start");
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].task == static_cast<int>(i)) continue;
    const bool twice = i > 0 && workers[i].task == workers[i - 1].task;
    if (gaps && !twice) continue;
    throw Error::format("{} workers answered, but task {} {}: the step is not one world",
                        workers.size(), twice ? workers[i].task : static_cast<int>(i),
                        twice ? "is there twice" : "is missing");
  }
  for (const Worker& worker : workers)
    if (worker.af_version != workers[0].af_version)
      throw Error::format("af {} on {} and af {} on {}: install one version on all nodes",
                          workers[0].af_version, workers[0].host, worker.af_version, worker.host);
}

std::string identity(const Gpu& gpu) {
  return gpu.uuid.empty() ? fmt::format("index {}", gpu.index) : gpu.uuid;
}

std::string visible_name(const Gpu& gpu) {
  // Numbers for whole cards, where there are any: many programs parse the variable as integers.
  // They are NVML's, in PCI order: CUDA_DEVICE_ORDER=PCI_BUS_ID goes with them.
  if (gpu.mig || gpu.index < 0) return gpu.uuid;
  return std::to_string(gpu.index);
}

std::string visible_list(const std::vector<Gpu>& gpus) {
  std::vector<std::string> names;
  names.reserve(gpus.size());
  for (const Gpu& gpu : gpus) names.push_back(visible_name(gpu));
  return fmt::format("{}", fmt::join(names, ","));
}

// How many GPUs each worker of this node gets.
size_t share(const std::vector<const Worker*>& node, int asked) {
  if (asked > 0) return static_cast<size_t>(asked);
  std::set<std::string> distinct;
  for (const Worker* worker : node)
    for (const Gpu& gpu : worker->gpus) distinct.insert(identity(gpu));
  return std::max<size_t>(1, distinct.size() / node.size());
}

// Gives the workers of one node their GPUs. With job-level GRES all workers list the same GPUs,
// with per-task binding each its own; taking "the first ones that nobody has" is right for both.
// Returns true if there were too few, so that workers have to share.
bool deal_gpus(const std::vector<const Worker*>& node, int asked, RankPlan* ranks) {
  const size_t each = share(node, asked);
  std::set<std::string> taken;
  bool too_few = false;
  for (size_t i = 0; i < node.size(); ++i) {
    const std::vector<Gpu>& seen = node[i]->gpus;
    for (const Gpu& gpu : seen) {
      if (ranks[i].gpus.size() == each) break;
      if (taken.insert(identity(gpu)).second) ranks[i].gpus.push_back(gpu);
    }
    if (ranks[i].gpus.size() < each && !seen.empty()) {
      too_few = true;
      if (ranks[i].gpus.empty()) ranks[i].gpus.push_back(seen[i % seen.size()]);
    }
  }
  return too_few;
}

// Every rank sees all GPUs of the node's world and picks number LOCAL_RANK (peer access and CUDA
// IPC need that), unless that number would be wrong: MIG (a process gets one instance), more than
// one GPU per rank, shared GPUs, or a rank that Slurm shows only its own.
void set_visible(const std::vector<const Worker*>& node, bool shared, RankPlan* ranks) {
  std::vector<Gpu> all;
  bool own_only = shared;
  for (size_t i = 0; i < node.size(); ++i) {
    own_only |= ranks[i].gpus.size() != 1 || ranks[i].gpus[0].mig;
    all.insert(all.end(), ranks[i].gpus.begin(), ranks[i].gpus.end());
  }
  for (const Worker* worker : node) {
    std::set<std::string> seen;
    for (const Gpu& gpu : worker->gpus) seen.insert(identity(gpu));
    for (const Gpu& gpu : all) own_only |= !seen.contains(identity(gpu));
  }
  for (size_t i = 0; i < node.size(); ++i) {
    RankPlan& rank = ranks[i];
    if (rank.gpus.empty()) continue;
    rank.local_rank = own_only ? 0 : rank.place_on_node;
    rank.visible_devices = visible_list(own_only ? rank.gpus : all);
    rank.gpu_memory_gb = std::numeric_limits<double>::max();
    for (const Gpu& gpu : rank.gpus)
      rank.gpu_memory_gb = std::min(rank.gpu_memory_gb, gpu.memory_gb);
  }
}

void check_gpus(const RankPlan& rank) {
  if (rank.gpus.size() < 2) return;
  for (const Gpu& gpu : rank.gpus)
    if (gpu.mig)
      throw Error::format(
          "rank {} on {} would get {} MIG instances, but a process can use one: "
          "use whole GPUs, or one GPU per worker",
          rank.rank, rank.host, rank.gpus.size());
}

}  // namespace

Plan make_plan(std::vector<Worker> workers, const PlanOptions& options) {
  std::sort(workers.begin(), workers.end(),
            [](const Worker& a, const Worker& b) { return a.task < b.task; });
  check(workers, options.elastic);
  Plan plan;
  for (const Worker& worker : workers)
    if (std::find(plan.hosts.begin(), plan.hosts.end(), worker.host) == plan.hosts.end())
      plan.hosts.push_back(worker.host);
  for (size_t n = 0; n < plan.hosts.size(); ++n) {
    std::vector<const Worker*> node;
    for (const Worker& worker : workers)
      if (worker.host == plan.hosts[n]) node.push_back(&worker);
    const size_t first = plan.ranks.size();
    for (size_t i = 0; i < node.size(); ++i) {
      plan.workers.push_back(*node[i]);
      plan.ranks.push_back({.rank = static_cast<int>(first + i),
                            .task = node[i]->task,
                            .host = node[i]->host,
                            .node_rank = static_cast<int>(n),
                            .place_on_node = static_cast<int>(i),
                            .local_rank = static_cast<int>(i),
                            .local_world_size = static_cast<int>(node.size()),
                            .gpus = {},
                            .visible_devices = std::nullopt,
                            .gpu_memory_gb = 0});
    }
    const bool shared = deal_gpus(node, options.gpus_per_worker, &plan.ranks[first]);
    if (shared)
      plan.warnings.push_back(
          fmt::format("{} has fewer GPUs than its {} workers need", node[0]->host, node.size()));
    set_visible(node, shared, &plan.ranks[first]);
  }
  for (const RankPlan& rank : plan.ranks) check_gpus(rank);
  BackendChoice choice = choose_backend(plan.workers, plan.ranks, options);
  plan.backend = std::move(choice.backend);
  plan.reason = std::move(choice.reason);
  plan.backend_environment = std::move(choice.environment);
  plan.warnings.insert(plan.warnings.end(), choice.warnings.begin(), choice.warnings.end());
  plan.master_address = plan.workers[0].address;
  plan.master_port = plan.workers[0].port;
  return plan;
}

}  // namespace af
