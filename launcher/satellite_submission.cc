// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_submission.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/explain.h"
#include "common/settings.h"
#include "launcher/satellite_name.h"
#include "launcher/step_command.h"

namespace af {
namespace {

// Slurm may start a satellite with this little, in a gap, or where the partition allows no more:
// with --time-min it shortens the time to the partition's maximum, which we need not know. (With
// EnforcePartLimits it refuses instead: then `longest` is halved until it does not.)
constexpr int kLeastMinutes = 10;
// Between the time that is asked for and the deadline: sbatch has to reach the controller.
constexpr double kMargin = 30;

// In file names Slurm reads % as the start of a replacement.
std::string literal_path(const std::string& path) {
  std::string text;
  for (const char c : path) text += c == '%' ? std::string("%%") : std::string(1, c);
  return text;
}

// The settings that the anchor was submitted with, as far as they are a worker's.
void add_settings(const Environment& inherited, std::vector<std::string>& argv) {
  for (const SettingSpec& spec : settings_table()) {
    if (spec.id == SettingId::kMaxWorkers || spec.id == SettingId::kNWorkers) continue;
    if (spec.type == SettingType::kFlag) continue;
    const std::string value = value_or(inherited, spec.env_name);
    if (!value.empty()) argv.push_back(fmt::format("--{}={}", spec.name, value));
  }
}

std::string script_of(const SatelliteFacts& facts) {
  std::string script = "#!/bin/sh\n";
  for (const char* name : variables_not_for_a_step()) script += fmt::format("unset {}\n", name);
  if (!facts.srun_shield.empty())
    script += fmt::format(
        "export AF_SRUN_FRONT_PID=$$\n"
        "export LD_PRELOAD={}\n",
        shell_quoted(facts.srun_shield));
  script +=
      "exec srun --ntasks=1 --mpi=none --kill-on-bad-exit=0 --wait=0 --export=ALL "
      "--job-name=af-launch --input=none";
  const long cpus = number_or(facts.inherited, "AF_CPUS_PER_WORKER", 0);
  if (cpus > 0) script += fmt::format(" --cpus-per-task={}", cpus);
  script +=
      fmt::format(" {} --join={} --run-dir={}", shell_quoted(facts.launcher),
                  shell_quoted(facts.coordinator), shell_quoted(facts.run_directory.string()));
  if (facts.verbose) script += " --verbose";
  return script + "\n";
}

}  // namespace

std::filesystem::path satellite_logs(const std::filesystem::path& run_directory) {
  return run_directory / "logs" / "satellites";
}

SubmissionCommand satellite_submission(const SatelliteFacts& facts, double seconds_left,
                                       double longest, const std::set<std::string>& excluded) {
  SubmissionCommand command;
  command.environment = slurm_environment(facts.inherited);
  command.script = script_of(facts);
  std::vector<std::string>& argv = command.argv;
  const std::string directory = facts.run_directory.string();
  argv = {"sbatch",
          "--parsable",
          "--job-name=" + facts.name,
          "--comment=af:" + facts.run_id,
          "--no-requeue",
          "--nodes=1",
          "--chdir=" + directory,
          "--output=" + literal_path(satellite_logs(directory).string()) + "/%j.log",
          "--open-mode=append"};
  if (!facts.account.empty()) argv.push_back("--account=" + facts.account);
  if (const double time = std::min(seconds_left - kMargin, longest); std::isfinite(time)) {
    const int minutes = std::max(1, static_cast<int>(time / 60));
    argv.push_back(fmt::format("--time={}", minutes));
    argv.push_back(fmt::format("--time-min={}", std::min(minutes, kLeastMinutes)));
  }
  if (std::isfinite(seconds_left)) {
    // Relative: whichever time zone the controller has. Slurm itself removes those that are still
    // pending then, also where nobody of ours is left to do it.
    argv.push_back(fmt::format("--deadline=now+{}", static_cast<long>(seconds_left)));
  }
  if (!excluded.empty()) {
    std::string nodes;
    for (const std::string& node : excluded) nodes += (nodes.empty() ? "" : ",") + node;
    argv.push_back("--exclude=" + nodes);
  }
  argv.insert(argv.end(), {"--af-satellite", "--af-max-workers=1"});
  add_settings(facts.inherited, argv);
  return command;
}

}  // namespace af
