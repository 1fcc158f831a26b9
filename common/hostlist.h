// SPDX-License-Identifier: Apache-2.0
// Slurm's compressed lists, as in SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE.
// expand_hostlist() gives what `scontrol show hostnames` gives: order and zero padding kept,
// repeated names kept.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace af {

// "n[1-2,05],x" -> n1 n2 n05 x. Throws Error for what is not a list (unbalanced bracket, "3-1", …)
// and for more than 65536 names.
std::vector<std::string> expand_hostlist(std::string_view list);

// "2(x2),1" -> 2 2 1. Throws Error for anything else.
std::vector<int> expand_tasks_per_node(std::string_view list);

}  // namespace af
