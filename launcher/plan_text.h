// SPDX-License-Identifier: Apache-2.0
// A plan in words: the line at the start of a job, and the table of --dry-run. Pure.
#pragma once

#include <string>

#include "launcher/plan.h"

namespace af {

// "4 ranks on 2 nodes, backend nccl: every card carries one rank"
std::string plan_sentence(const Plan& plan);
// One line per rank, with a heading; each ends in "\n".
std::string plan_table(const Plan& plan);

}  // namespace af
