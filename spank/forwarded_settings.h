// SPDX-License-Identifier: Apache-2.0
// How the settings in force travel from the submit host to the steps of the job: as variables
// SLURM_SPANK_AF_MAX_WORKERS=4 and so on, which Slurm hands on under every --export.
//
// The options themselves do not arrive everywhere: under --export=NONE or --export=VAR the batch
// step never hears of them before Slurm 24.05 (case B32), and they would have to be settled with
// the site file a second time. What a step reads here is the person's to change, and only ever
// becomes variables of the person's own processes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "spank/slurm_api.h"
#include "spank/submission.h"

namespace af::spank {

using Variables = std::vector<std::pair<std::string, std::string>>;

inline constexpr const char* kForwardedPrefix = "SLURM_SPANK_AF_";
// Of a job that has joined a run: its ranks carry that run's AF_RUN_ID, and not the job's own.
inline constexpr const char* kSatelliteVariable = "AF_SATELLITE";

// Hands `settings`, the variables of the job as job_environment() gives them, to the job that is
// being submitted. For salloc also sets them in this process, whose child the person's shell is.
void forward_settings(spank_t spank, Tool tool, const Variables& settings, int cpus_per_worker);

}  // namespace af::spank
