// SPDX-License-Identifier: Apache-2.0
#include "spank/step_cpus.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "common/native_options.h"
#include "spank/command_line.h"
#include "spank/slurm_options.h"

namespace af::spank {

std::vector<int> parse_cpus_per_node(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::string part(text.substr(0, text.find(',')));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    char* rest = nullptr;
    const long value = std::strtol(part.c_str(), &rest, 10);
    const long times =
        std::string_view(rest).starts_with("(x") ? std::strtol(rest + 2, nullptr, 10) : 1;
    constexpr long kMost = 100'000;  // nobody has more nodes, or CPUs in one
    if (value < 1 || value > kMost || times < 1 || times > kMost) return {};
    cpus.insert(cpus.end(), static_cast<std::size_t>(times), static_cast<int>(value));
  }
  return cpus;
}

bool tasks_fit(int tasks, int cpus, int nodes, std::vector<int> cpus_per_node) {
  if (nodes > 0 && static_cast<std::size_t>(nodes) < cpus_per_node.size()) {
    // Which nodes srun takes is its business: the smallest are the careful guess.
    std::ranges::sort(cpus_per_node);
    cpus_per_node.resize(static_cast<std::size_t>(nodes));
  }
  const int room = std::accumulate(cpus_per_node.begin(), cpus_per_node.end(), 0,
                                   [&](int sum, int there) { return sum + there / cpus; });
  return tasks <= room;
}

void drop_worker_cpus_if_step_does_not_fit() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : 0;
  };
  const int cpus = number("SRUN_CPUS_PER_TASK");
  const char* job_cpus = std::getenv("SLURM_JOB_CPUS_PER_NODE");
  // Another number is the person's own.
  if (cpus < 1 || cpus != number("AF_CPUS_PER_WORKER") || !job_cpus) return;
  const auto slurm = find_slurm_options(nullptr);
  if (!slurm) return;

  int tasks = std::max(1, number("SLURM_NTASKS"));
  int nodes = 0, tasks_per_node = 0;
  for (const auto& [name, value] :
       parse_command_line(own_command_line(), slurm->syntax()).options) {
    if (name == "ntasks") tasks = std::atoi(value.c_str());
    if (name == "nodes") nodes = parse_node_range(value).max;
    if (name == "ntasks-per-node") tasks_per_node = std::atoi(value.c_str());
  }
  const std::vector<int> there = parse_cpus_per_node(job_cpus);
  const bool each_node_fits =
      std::ranges::all_of(there, [&](int node) { return tasks_per_node * cpus <= node; });
  if (!each_node_fits || !tasks_fit(tasks, cpus, nodes, there)) unsetenv("SRUN_CPUS_PER_TASK");
}

}  // namespace af::spank
