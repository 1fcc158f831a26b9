// SPDX-License-Identifier: Apache-2.0
// sbatch, srun, salloc, when all options are known: contradictions, paths, --af-explain, and the
// settings sent with the job. A refusal ends the command here, with one line and nothing submitted.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string_view>

#include "common/atomic_file.h"
#include "common/batch_script.h"
#include "common/error.h"
#include "common/explain.h"
#include "common/paths.h"
#include "spank/batch_defaults.h"
#include "spank/command_line.h"
#include "spank/forwarded_settings.h"
#include "spank/report.h"
#include "spank/submission.h"

namespace af::spank {
namespace {

std::string working_directory() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

bool is_readable_file(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), R_OK) == 0;
}

// Where sbatch found the script: as sbatch looks for it (search_path() in slurm's xstring
// of 22.05), a name without a slash first in the working directory, then in PATH. "" = standard
// input, --wrap.
std::string script_path(const std::vector<std::string>& operands, SlurmOptions& slurm) {
  if (operands.empty()) return "";
  const std::string& name = operands.front();
  const std::string chdir = slurm.is_set("chdir") ? slurm.get("chdir") : "";
  const std::string directory = absolute_path(chdir.empty() ? "." : chdir, working_directory());
  std::string here = absolute_path(name, directory);
  if (is_readable_file(here)) return here;
  if (name.find('/') != std::string::npos) return "";
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path ? path : ""; !rest.empty();) {
    const std::size_t colon = rest.find(':');
    std::string candidate = std::string(rest.substr(0, colon)) + "/" + name;
    if (is_readable_file(candidate)) return candidate;
    rest.remove_prefix(colon == rest.npos ? rest.size() : colon + 1);
  }
  return "";
}

// Case B38. For every script, also where no af option has arrived: the one line that asked for four
// GPUs may be the one that Slurm ignores.
void warn_of_ignored_lines(const std::vector<std::string>& operands, SlurmOptions& slurm) {
  constexpr std::uintmax_t kLargestScript = 8 << 20;  // Slurm's limit is 4 MiB by default
  const std::string path = script_path(operands, slurm);
  std::error_code error;
  if (path.empty() || std::filesystem::file_size(path, error) > kLargestScript || error) return;
  for (const ScriptWarning& warning : find_ignored_settings(read_file(path))) {
    report_warning(path + ", " + warning.text);
  }
}

// For a shell: the line that --af-explain prints can be typed again.
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

JobPaths job_paths(SlurmOptions& slurm, Tool tool) {
  const auto given = [&](const char* name) {
    return slurm.is_set(name) ? slurm.get(name) : std::string();
  };
  JobPaths paths;
  paths.submit_directory = working_directory();
  paths.chdir = given("chdir");
  paths.output = given("output");
  paths.error = given("error");
  paths.batch = tool == Tool::kSbatch;
  return paths;
}

void finish(spank_t spank, Submission& submission, const std::vector<std::string>& operands) {
  Decision decision = submission.decide();
  const Settings& settings = decision.settings;
  const Storage& storage = submission.site().storage;
  std::string prefix;
  if (!settings.env.empty()) {
    prefix = absolute_path(settings.env, working_directory());
    check_env_prefix(prefix, storage, real_file_view());
  }
  // srun opens its output files itself, on this machine, and salloc has none.
  if (submission.tool() == Tool::kSbatch) {
    check_job_paths(job_paths(submission.slurm(), submission.tool()), storage, real_file_view());
    for (const SlurmOption& option : batch_defaults(submission.slurm())) {
      // A Slurm that does not take it has the job all the same, with its own default.
      if (submission.slurm().set(option.name, option.value)) {
        decision.request.options.push_back(option);
      }
    }
  }
  if (submission.tool() == Tool::kSrun && !submission.in_job() && settings.max_workers > 1) {
    report_warning(
        "a job of srun is not started again when it is preempted or at its time limit; one of "
        "sbatch is");
  }
  Variables variables = job_environment(settings, prefix);
  if (settings.satellite) variables.emplace_back(kSatelliteVariable, "1");
  forward_settings(spank, submission.tool(), variables, settings.cpus_per_worker);
  if (settings.explain) {
    const std::string text =
        explain(settings, submission.site(), decision.native, decision.request, joined(operands));
    std::fputs(text.c_str(), stderr);
  }
}

}  // namespace

int submit_all_options_seen(spank_t spank) {
  Submission& now = submission();
  const bool first_component = !now.options_complete;
  now.options_complete = true;
  std::string refusal;
  try {
    // Once for each component, in one process; options of the first stay set in the others.
    if (!first_component) {
      if (now.uses_af()) refusal = heterogeneous_job_message();
    } else {
      std::vector<std::string> operands;
      if (now.uses_af() || now.tool() == Tool::kSbatch) {
        operands = parse_command_line(own_command_line(), now.slurm().syntax()).operands;
      }
      if (now.tool() == Tool::kSbatch) warn_of_ignored_lines(operands, now.slurm());
      if (now.uses_af()) finish(spank, now, operands);
    }
  } catch (const std::exception& error) {
    // A plain command goes on, whatever went wrong in here.
    if (now.uses_af()) refusal = error.what();
  }
  // Outside the try block: exit() must not be called with an exception in flight.
  if (!refusal.empty()) refuse(refusal);
  return 0;
}

}  // namespace af::spank
