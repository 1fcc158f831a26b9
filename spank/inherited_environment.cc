// SPDX-License-Identifier: Apache-2.0
#include "spank/inherited_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "spank/forwarded_settings.h"

namespace af::spank {
namespace {

std::vector<std::string> names_of_environment() {
  std::vector<std::string> names;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

// What the outer run says of itself. Not every AF_ variable: ArrayFire, for one, has such names
// too.
constexpr std::string_view kIdentity[] = {
    "AF_RUN_ID",         "AF_ATTEMPT",       "AF_GENERATION",      "AF_SUPERVISED",
    "AF_SOCKET",         "AF_RUN_DIR",       "AF_BACKEND",         "AF_LOCAL_RANK",
    "AF_CHECKPOINT_DIR", "AF_GPU_MEMORY_GB", "AF_SHIELD_STEPD_PID"};

// srun 22.05 to 23.02 takes the CPUs of a step's task from this variable alone, so an af job sets
// it (job_environment.cc). A new job of another shape could not start a step with it.
constexpr const char* kCpusOfSteps = "SRUN_CPUS_PER_TASK";

// Slurm's variables for what af has asked for in the outer job. sbatch does not read them, but
// hands them on, and srun in the new job does: "Step requested GRES but job doesn't have GRES".
// salloc has the same trouble and is left as it is, since its shell shows its environment to the
// person.
constexpr std::string_view kOuterShape[] = {"SLURM_NTASKS",        "SLURM_NPROCS",
                                            "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK",
                                            "SLURM_TRES_PER_TASK", "SLURM_MEM_PER_GPU"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

}  // namespace

std::string spank_variable(const SettingSpec& spec) {
  std::string name = "SLURM_SPANK__SLURM_SPANK_OPTION_af_";
  for (const char letter : std::string_view(spec.name)) name += letter == '-' ? '_' : letter;
  return name;
}

std::vector<std::string> leftovers_of_outer_job(std::span<const std::string> names, Tool tool) {
  const bool new_job = tool != Tool::kSrun;
  const bool in_af_job = contains(names, "AF_RUN_ID");
  std::vector<std::string> leftovers;
  for (const std::string& name : names) {
    const bool option = name.starts_with("SLURM_SPANK__SLURM_SPANK_OPTION_af_") ||
                        name.starts_with("_SLURM_SPANK_OPTION_af_");
    const bool setting = name.starts_with(kForwardedPrefix) || find_setting_by_env(name);
    const bool identity = contains(kIdentity, name) || (in_af_job && name == kCpusOfSteps);
    const bool shape = in_af_job && tool == Tool::kSbatch && contains(kOuterShape, name);
    if (option || (new_job && (setting || identity || shape))) leftovers.push_back(name);
  }
  return leftovers;
}

void forget_outer_job(Tool tool) {
  for (const std::string& name : leftovers_of_outer_job(names_of_environment(), tool)) {
    unsetenv(name.c_str());
  }
}

void apply_environment_defaults() {
  for (const SettingSpec& spec : settings_table()) {
    const char* value = std::getenv(spec.env_name);
    if (!value || !*value) continue;
    setenv(spank_variable(spec).c_str(), value, 1);
  }
}

}  // namespace af::spank
