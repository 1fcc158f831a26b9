// SPDX-License-Identifier: Apache-2.0
#include "launcher/step_command.h"

#include <fmt/core.h>

namespace af {
namespace {

// srun takes these for options of its own.
constexpr const char* kNotForTheStep[] = {
    // A step sees all of the job's GPUs of its node only if it asks for none of them by itself;
    // with
    // mem-per-gpu and --mem both inherited, srun refuses ("mutually exclusive").
    "SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_GPU_BIND",
    "SLURM_TRES_BIND",
    // sbatch --export=NONE leaves this, and srun then starts tasks without PATH (ood_core#158).
    "SLURM_EXPORT_ENV",
    // What the launcher decides by options, and layouts that contradict -n.
    "SLURM_MPI_TYPE", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_CORE", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO", "SLURM_STDINMODE",
    "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_HOSTFILE", "SLURM_DEBUG", "SLURM_OVERLAP"};

Environment step_environment(const Environment& inherited, const StepFacts& facts) {
  Environment environment = inherited;
  for (const char* name : kNotForTheStep) environment.erase(name);
  for (const char* prefix : {"SLURM_CPU_BIND", "SLURM_MEM_BIND", "PMIX_", "PMI_", "OMPI_", "PRTE_"})
    erase_prefix(environment, prefix);
  if (facts.srun_shield.empty()) return environment;
  std::string& preload = environment["LD_PRELOAD"];
  preload = facts.srun_shield + (preload.empty() ? "" : ":" + preload);
  environment["AF_SRUN_FRONT_PID"] = std::to_string(facts.front_pid);
  return environment;
}

}  // namespace

std::span<const char* const> variables_not_for_a_step() {
  return kNotForTheStep;
}

StepCommand step_command(const Options& options, const LaunchContext& context,
                         const Environment& inherited, const StepFacts& facts) {
  StepCommand command;
  std::vector<std::string>& argv = command.argv;
  // --kill-on-bad-exit=0 --wait=0: a site's KillOnBadExit=1 would end the step at the first rank
  // that fails, before its output and its exit code have been told. The launcher decides.
  argv = {"srun",
          fmt::format("--ntasks={}", facts.tasks),
          "--kill-on-bad-exit=0",
          "--wait=0",
          "--export=ALL",
          "--job-name=af-launch",
          options.bootstrap == "mpi" ? "--mpi=pmix" : "--mpi=none",
          facts.read_stdin ? "--input=0" : "--input=none"};
  // srun 22.05 to 23.02 does not take sbatch's --cpus-per-task over.
  if (context.cpus_per_task > 0)
    argv.push_back(fmt::format("--cpus-per-task={}", context.cpus_per_task));
  argv.insert(argv.end(),
              {facts.launcher, "--agent", "--front=" + facts.front,
               "--run-dir=" + facts.run_directory, fmt::format("--generation={}", facts.generation),
               "--bootstrap=" + options.bootstrap, fmt::format("--grace={}", options.grace),
               fmt::format("--grow-interval={}", options.grow_interval)});
  if (options.gpus_per_worker > 0)
    argv.push_back(fmt::format("--gpus-per-worker={}", options.gpus_per_worker));
  if (!options.backend.empty()) argv.push_back("--backend=" + options.backend);
  if (options.program)
    argv.push_back(*options.program == ProgramKind::kTorch ? "--program=torch" : "--program=af");
  if (!options.satellites.empty()) argv.push_back("--satellites=" + options.satellites);
  if (options.dry_run) argv.push_back("--dry-run");
  if (options.verbose) argv.push_back("--verbose");
  argv.push_back("--");
  argv.insert(argv.end(), options.command.begin(), options.command.end());
  command.environment = step_environment(inherited, facts);
  return command;
}

}  // namespace af
