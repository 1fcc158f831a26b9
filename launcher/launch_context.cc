// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch_context.h"

#include <algorithm>

namespace af {
namespace {

// Step ids from here up are Slurm's own: batch, extern, interactive (slurm.h, SLURM_BATCH_SCRIPT…).
// The shell of salloc under use_interactive_step has one, but nobody called srun around us.
constexpr long kFirstSpecialStep = 0xfffffff0;

// By name: other software (ArrayFire, for one) has AF_ variables too.
constexpr const char* kOfARun[] = {
    "AF_RUN_ID",          "AF_ATTEMPT",          "AF_GENERATION",    "AF_RUN_DIR",
    "AF_CHECKPOINT_DIR",  "AF_BACKEND",          "AF_GPU_MEMORY_GB", "AF_SOCKET",
    "AF_LOCAL_RANK",      "AF_MAX_WORKERS",      "AF_N_WORKERS",     "AF_GPUS_PER_WORKER",
    "AF_CPUS_PER_WORKER", "AF_SHIELD_STEPD_PID", "AF_SUPERVISED",    "AF_ELASTIC"};

// The run that a job is by itself; empty outside Slurm.
std::string job_run_id(const Environment& environment) {
  const std::string array = value_or(environment, "SLURM_ARRAY_JOB_ID");
  if (!array.empty()) return array + "_" + value_or(environment, "SLURM_ARRAY_TASK_ID", "0");
  return value_or(environment, "SLURM_JOB_ID");
}

int first_number(const Environment& environment, std::initializer_list<const char*> names,
                 int missing) {
  for (const char* name : names) {
    const long number = number_or(environment, name, 0);
    if (number > 0) return static_cast<int>(number);
  }
  return missing;
}

}  // namespace

bool leave_inherited_run(Environment& environment) {
  if (!environment.contains("AF_SOCKET")) return true;
  if (!environment.contains("SLURM_JOB_ID") ||
      value_or(environment, "AF_RUN_ID") != job_run_id(environment)) {
    for (const char* name : kOfARun) environment.erase(name);
    return true;
  }
  return false;
}

LaunchContext read_launch_context(const Environment& environment) {
  LaunchContext context;
  context.run_id = value_or(environment, "AF_RUN_ID", job_run_id(environment));
  if (context.run_id.empty()) context.run_id = job_run_id(environment);
  context.attempt = static_cast<int>(
      number_or(environment, "AF_ATTEMPT", number_or(environment, "SLURM_RESTART_COUNT", 0)));
  context.gpus_per_worker = first_number(environment, {"AF_GPUS_PER_WORKER"}, 0);
  context.max_workers = first_number(environment, {"AF_MAX_WORKERS"}, 0);
  context.job_id = value_or(environment, "SLURM_JOB_ID");
  if (context.job_id.empty()) return context;
  context.elastic = context.max_workers > 1 && !environment.contains("AF_N_WORKERS") &&
                    number_or(environment, "SLURM_NTASKS", 1) <= 1;

  context.node_name = value_or(environment, "SLURMD_NODENAME");
  context.submit_directory = value_or(environment, "SLURM_SUBMIT_DIR");
  context.cpus_per_task =
      first_number(environment, {"AF_CPUS_PER_WORKER", "SLURM_CPUS_PER_TASK"}, 0);
  const long step = number_or(environment, "SLURM_STEP_ID", kFirstSpecialStep);
  if (step < kFirstSpecialStep && environment.contains("SLURM_PROCID")) {
    context.mode = LaunchMode::kStep;
    context.step_id = std::to_string(step);
    context.task = static_cast<int>(number_or(environment, "SLURM_PROCID", 0));
    context.tasks = first_number(environment, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1);
    return context;
  }
  context.mode = LaunchMode::kFront;
  context.tasks = first_number(
      environment, {"AF_N_WORKERS", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES"}, 1);
  return context;
}

}  // namespace af
