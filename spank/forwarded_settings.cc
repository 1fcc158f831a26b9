// SPDX-License-Identifier: Apache-2.0
#include "spank/forwarded_settings.h"

#include <cstdlib>

#include "spank/environment_activation.h"

namespace af::spank {
namespace {

void set_here(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 1);
}

// What job_environment.cc does in a batch step has to be done here for the shell of salloc, which
// no slurmstepd starts.
void prepare_shell(const Variables& settings, int cpus_per_worker) {
  for (const SettingSpec& spec : settings_table()) unsetenv(spec.env_name);
  for (const auto& [name, value] : settings) set_here(name, value);
  set_here("SRUN_CPUS_PER_TASK", std::to_string(cpus_per_worker));
  if (const char* prefix = std::getenv("AF_ENV")) {
    const char* path = std::getenv("PATH");
    for (const auto& [name, value] : activation(prefix, path ? path : "", real_file_view())) {
      set_here(name, value);
    }
  }
}

}  // namespace

void forward_settings(spank_t spank, Tool tool, const Variables& settings, int cpus_per_worker) {
  for (const auto& [name, value] : settings) {
    // Slurm puts "SLURM_SPANK_" before it in the job of sbatch and in the shell of salloc.
    if (spank_job_control_setenv) spank_job_control_setenv(spank, name.c_str(), value.c_str(), 1);
    // srun does not hand these on to its own tasks; what it finds in its environment it does.
    if (tool == Tool::kSrun) set_here("SLURM_SPANK_" + name, value);
  }
  if (tool == Tool::kSalloc) prepare_shell(settings, cpus_per_worker);
}

}  // namespace af::spank
