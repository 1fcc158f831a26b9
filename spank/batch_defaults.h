// SPDX-License-Identifier: Apache-2.0
// What af's batch jobs get where the person has not chosen: they may be requeued, and a requeue
// does not erase the output of the attempt before. Pure but for the options it reads.
#pragma once

#include <string>
#include <vector>

#include "common/request.h"
#include "spank/slurm_options.h"

namespace af::spank {

// Whether every job has a file of its own under this --output or --error pattern: %j, %J or %A
// stands in it. "" is Slurm's default, slurm-%j.out or slurm-%A_%a.out.
bool names_one_job(const std::string& pattern);

// For sbatch, when all options are known. --open-mode=append only where each job has its own output
// file: another job's text in a file with a fixed name is replaced as ever.
std::vector<SlurmOption> batch_defaults(const SlurmOptions& slurm);

}  // namespace af::spank
