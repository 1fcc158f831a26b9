// SPDX-License-Identifier: Apache-2.0
#include "spank/job_environment.h"

#include <fmt/core.h>

#include "common/settings.h"
#include "spank/environment_activation.h"
#include "spank/forwarded_settings.h"

namespace af::spank {
namespace {

const std::string* find(const std::map<std::string, std::string>& variables,
                        const std::string& name) {
  const auto entry = variables.find(name);
  return entry == variables.end() ? nullptr : &entry->second;
}

std::string forwarded_name(const SettingSpec& spec) {
  return std::string("SLURM_SPANK_") + spec.env_name;
}

}  // namespace

std::string run_id(const StepFacts& step) {
  // From the variables first: steps of an array's task have them, while slurmstepd tells its
  // plugins of the array in the batch step only.
  const std::string* array = find(step.environment, "SLURM_ARRAY_JOB_ID");
  const std::string* task = find(step.environment, "SLURM_ARRAY_TASK_ID");
  if (array && task) return *array + "_" + *task;
  if (step.array_job_id && step.array_task_id) {
    return fmt::format("{}_{}", *step.array_job_id, *step.array_task_id);
  }
  return std::to_string(step.job_id);
}

bool is_af_job(const StepFacts& step) {
  return step.kind != StepKind::kExtern &&
         find(step.environment, forwarded_name(spec_of(SettingId::kMaxWorkers)));
}

bool is_satellite(const StepFacts& step) {
  return find(step.environment, std::string("SLURM_SPANK_") + kSatelliteVariable);
}

std::vector<VariableChange> environment_changes(const StepFacts& step, const FileView& files) {
  std::vector<VariableChange> changes;
  const auto& before = step.environment;
  // Settings that are not in force go: an AF_N_WORKERS from the person's environment which the
  // command line has overruled would be read as the truth.
  for (const SettingSpec& spec : settings_table()) {
    if (const std::string* value = find(before, forwarded_name(spec))) {
      changes.emplace_back(spec.env_name, *value);
    } else if (find(before, spec.env_name)) {
      changes.emplace_back(spec.env_name, std::nullopt);
    }
  }
  changes.emplace_back("AF_RUN_ID", run_id(step));
  changes.emplace_back("AF_ATTEMPT", std::to_string(step.restarts));

  const bool script = step.kind == StepKind::kBatch || step.kind == StepKind::kInteractive;
  const std::string* cpus = find(before, forwarded_name(spec_of(SettingId::kCpusPerWorker)));
  // srun 22.05 to 23.02 ignores SLURM_CPUS_PER_TASK, and each task gets one CPU (case B34).
  if (script && cpus && !find(before, "SRUN_CPUS_PER_TASK")) {
    changes.emplace_back("SRUN_CPUS_PER_TASK", *cpus);
  }
  // sbatch --export=NONE sets this, and each srun of the job would start its tasks without PATH and
  // without what is set here (case B32). The person wanted a clean job, and has got one.
  if (step.kind == StepKind::kBatch && find(before, "SLURM_EXPORT_ENV")) {
    changes.emplace_back("SLURM_EXPORT_ENV", std::nullopt);
  }

  const std::string* path = find(before, "PATH");
  const std::string* prefix = find(before, forwarded_name(spec_of(SettingId::kEnv)));
  if (prefix) {
    for (const auto& [name, value] : activation(*prefix, path ? *path : "", files)) {
      changes.emplace_back(name, value);
    }
  } else if (!path) {
    changes.emplace_back("PATH", kDefaultPath);
  }
  return changes;
}

}  // namespace af::spank
