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

}  // namespace

std::string spank_variable(const SettingSpec& spec) {
  std::string name = "SLURM_SPANK__SLURM_SPANK_OPTION_af_";
  for (const char letter : std::string_view(spec.name)) name += letter == '-' ? '_' : letter;
  return name;
}

std::vector<std::string> leftovers_of_outer_job(std::span<const std::string> names, Tool tool) {
  const bool new_job = tool != Tool::kSrun;
  const bool in_af_job = std::ranges::find(names, "AF_RUN_ID") != names.end();
  std::vector<std::string> leftovers;
  for (const std::string& name : names) {
    const bool option = name.starts_with("SLURM_SPANK__SLURM_SPANK_OPTION_af_") ||
                        name.starts_with("_SLURM_SPANK_OPTION_af_");
    const bool setting = name.starts_with(kForwardedPrefix) || find_setting_by_env(name);
    const bool identity = std::ranges::find(kIdentity, name) != std::end(kIdentity) ||
                          (in_af_job && name == kCpusOfSteps);
    if (option || (new_job && (setting || identity))) leftovers.push_back(name);
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
