// SPDX-License-Identifier: Apache-2.0
// What the environment of sbatch, srun or salloc means for af: defaults (AF_N_WORKERS=4 sbatch …)
// outside a job, leftovers of the outer job inside one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/native_options.h"
#include "common/settings.h"

namespace af::spank {

// The variable through which Slurm itself takes an option of a SPANK plugin, at the right place of
// its order: "SLURM_SPANK__SLURM_SPANK_OPTION_af_af_max_workers".
std::string spank_variable(const SettingSpec& spec);

// Those of `names` that a command inside a job must not see, or a plain `sbatch` there would become
// an af job of the outer job's shape. Pure; `names` are names of variables.
//
// Always: the outer job's options, which Slurm hands on by itself. For a new job (sbatch, salloc)
// also the settings in force and the identity of the outer run; a step (srun) belongs to the run
// and keeps them. For sbatch also the shape that af gave the outer job.
std::vector<std::string> leftovers_of_outer_job(std::span<const std::string> names, Tool tool);

// The effects on this process's environment.
void forget_outer_job(Tool tool);
// Sets spank_variable() of each setting whose AF_* variable is set and not empty.
void apply_environment_defaults();

}  // namespace af::spank
