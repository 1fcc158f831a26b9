// SPDX-License-Identifier: Apache-2.0
// An af job gives each srun task in it the CPUs of a worker, by SRUN_CPUS_PER_TASK (case B34). A
// plain srun of another shape ("srun -n 16 …" in a job of two workers) must run as in any job, and
// not be refused for want of CPUs: then the variable is dropped. Pure, but for the last function.
#pragma once

#include <string_view>
#include <vector>

namespace af::spank {

// SLURM_JOB_CPUS_PER_NODE: "16(x2),8" is 16, 16, 8. Empty where it is not such a list.
std::vector<int> parse_cpus_per_node(std::string_view text);

// Whether `tasks` tasks of `cpus` CPUs each fit into the job's nodes, or into any `nodes` of them
// (0: all).
bool tasks_fit(int tasks, int cpus, int nodes, std::vector<int> cpus_per_node);

// In srun inside an af job, before it reads its options: unsets SRUN_CPUS_PER_TASK where the step
// as typed would not fit with it.
void drop_worker_cpus_if_step_does_not_fit();

}  // namespace af::spank
