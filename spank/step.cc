// SPDX-License-Identifier: Apache-2.0
#include "spank/step.h"

#include <slurm/slurm.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "common/error.h"
#include "common/paths.h"
#include "common/site.h"
#include "spank/job_environment.h"
#include "spank/report.h"
#include "spank/submission.h"
#include "spank/supervisor.h"
#include "spank/sweep.h"

namespace af::spank {
namespace {

// Of the one step that this slurmstepd runs. Tasks are forks of it: they see the state as it was,
// and what they change is theirs alone. Never destroyed.
struct StepState {
  PluginArguments arguments;
  bool is_af = false;
  StepFacts facts;
  SweepMark mark;
  std::string env_prefix;
  std::string error;  // for step_task_init
  uint32_t tasks = 1;
  uint32_t tasks_ended = 0;
};
StepState& state() {
  static StepState* const the_state = new StepState;
  return *the_state;
}

constexpr auto kSweepLimit = std::chrono::seconds(2);

StepKind kind_of(uint32_t step_id) {
  switch (step_id) {
    case SLURM_BATCH_SCRIPT:
      return StepKind::kBatch;
    case SLURM_INTERACTIVE_STEP:
      return StepKind::kInteractive;
    case SLURM_EXTERN_CONT:
      return StepKind::kExtern;
    default:
      return StepKind::kRegular;
  }
}

std::map<std::string, std::string> job_variables(spank_t spank) {
  std::map<std::string, std::string> variables;
  char** entries = nullptr;
  if (spank_get_item(spank, S_JOB_ENV, &entries) != ESPANK_SUCCESS) return variables;
  for (; entries && *entries; ++entries) {
    if (char* equals = std::strchr(*entries, '=')) {
      variables.emplace(std::string(*entries, equals), equals + 1);
    }
  }
  return variables;
}

// No value where Slurm has none: it then gives 0 or NO_VAL, by the version.
std::optional<uint32_t> number_of(spank_t spank, spank_item_t item) {
  uint32_t value = NO_VAL;
  if (spank_get_item(spank, item, &value) != ESPANK_SUCCESS || value == NO_VAL) return std::nullopt;
  return value;
}

StepFacts facts_of(spank_t spank, uint32_t step_id) {
  StepFacts facts;
  facts.job_id = number_of(spank, S_JOB_ID).value_or(0);
  facts.kind = kind_of(step_id);
  facts.environment = job_variables(spank);
  const std::optional<uint32_t> array = number_of(spank, S_JOB_ARRAY_ID);
  if (array && *array != 0) {
    facts.array_job_id = array;
    facts.array_task_id = number_of(spank, S_JOB_ARRAY_TASK_ID);
  }
  const auto restarts = facts.environment.find("SLURM_RESTART_COUNT");
  facts.restarts = restarts != facts.environment.end()
                       ? static_cast<uint32_t>(std::strtoul(restarts->second.c_str(), nullptr, 10))
                       : number_of(spank, S_SLURM_RESTART_COUNT).value_or(0);
  return facts;
}

// The switch of the whole system, read at the job's start too: with `enabled: no` nothing of ours
// happens on the node. A file that cannot be read switches nothing off, for the job was accepted.
bool switched_off(const PluginArguments& arguments) {
  try {
    return !load_site(find_site_file(arguments.config, nullptr, site_files())).enabled;
  } catch (const std::exception& error) {
    report_error(error.what());
    return false;
  }
}

// For root: looks at nothing. The person's paths may lie on a file server that gives root no right
// on, or that does not answer.
class NoFiles : public FileView {
 public:
  bool exists(const std::string&) const override { return false; }
  bool is_directory(const std::string&) const override { return false; }
  bool is_writable(const std::string&) const override { return false; }
  std::string real_path(const std::string& path) const override { return path; }
};

void set_variables(spank_t spank, const std::vector<VariableChange>& changes) {
  for (const auto& [name, value] : changes) {
    const auto code = value ? spank_setenv(spank, name.c_str(), value->c_str(), 1)
                            : spank_unsetenv(spank, name.c_str());
    if (code != ESPANK_SUCCESS && value) {
      throw Error::format("cannot set {} in the job's environment (SPANK error {})", name,
                          static_cast<int>(code));
    }
  }
}

// slurmstepd has its node's name in its own environment (the job's gets it only in the tasks).
// Where it has not, the short host name, which a node is called by unless slurm.conf says
// otherwise.
std::string node_name() {
  if (const char* name = std::getenv("SLURMD_NODENAME")) return name;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return std::string(name).substr(0, std::string_view(name).find('.'));
}

SweepMark mark_of(spank_t spank, const StepFacts& facts, uint32_t step_id) {
  SweepMark mark;
  spank_get_item(spank, S_JOB_UID, &mark.uid);
  mark.job_id = facts.job_id;
  // The ranks of a satellite have the run id of the job that they have joined.
  if (!is_satellite(facts)) mark.run_id = run_id(facts);
  mark.step_id = step_id;
  mark.node = node_name();
  return mark;
}

// As the person: root may not see the person's storage.
std::string missing_environment(const std::string& prefix) {
  if (prefix.empty() || access((prefix + "/bin").c_str(), X_OK) == 0) return "";
  return fmt::format("--af-env: {}/bin cannot be entered on node {}: {}", prefix, node_name(),
                     std::strerror(errno));
}

void sweep_step() {
  const SweepResult result = sweep(state().mark, kSweepLimit);
  if (result.killed > 0 || result.left > 0) {
    report_warning(fmt::format("run {}: ended {} process{} that the step had left behind{}",
                               state().mark.run_id, result.killed, result.killed == 1 ? "" : "es",
                               result.left ? fmt::format(", {} do not die", result.left) : ""));
  }
}

}  // namespace

int step_init(spank_t spank, const PluginArguments& arguments) {
  state().arguments = arguments;
  // The values are settled at submit and come as variables; but an option that nobody registers
  // here is reported as unknown for each srun.
  register_options(spank, [](int, const char*, int) { return 0; });
  return 0;
}

int step_options_seen(spank_t spank) {
  StepState& step = state();
  try {
    uint32_t step_id = 0;
    spank_get_item(spank, S_JOB_STEPID, &step_id);
    step.facts = facts_of(spank, step_id);
    step.is_af = is_af_job(step.facts) && !switched_off(step.arguments);
    if (!step.is_af) return 0;
    step.mark = mark_of(spank, step.facts, step_id);
    step.tasks = number_of(spank, S_JOB_LOCAL_TASK_COUNT).value_or(1);
    const auto changes = environment_changes(step.facts, NoFiles());
    for (const auto& [name, value] : changes) {
      if (name == spec_of(SettingId::kEnv).env_name && value) step.env_prefix = *value;
    }
    set_variables(spank, changes);
  } catch (const std::exception& error) {
    if (!step.is_af) report_error(error.what());  // a plain job goes on
    step.error = error.what();
  }
  return 0;
}

int step_task_init(spank_t spank) {
  StepState& step = state();
  if (!step.is_af) return 0;
  if (step.error.empty()) step.error = missing_environment(step.env_prefix);
  if (!step.error.empty()) {
    report_error(step.error);
    // A batch script's stderr is its output file, and slurmstepd's words go to a log that people do
    // not see.
    if (step.facts.kind == StepKind::kBatch) dprintf(STDERR_FILENO, "af: %s\n", step.error.c_str());
    return -1;
  }
  // Again: Slurm 22.05 tells a batch step of its restarts only now (SLURM_RESTART_COUNT), and only
  // the person may see what kind of environment it is.
  set_variables(spank, environment_changes(facts_of(spank, step.mark.step_id), real_file_view()));
  if (step.facts.kind == StepKind::kBatch) {
    const int failed = start_supervisor();  // from here on in the child
    if (failed) {
      report_error(
          fmt::format("the batch script runs without its supervisor: {}", std::strerror(failed)));
    } else {
      spank_setenv(spank, "SLURM_TASK_PID", std::to_string(getpid()).c_str(), 1);
      spank_setenv(spank, "AF_SUPERVISED", "1", 1);
    }
  }
  return 0;
}

int step_task_exit(spank_t) {
  StepState& step = state();
  // When the last has gone, before slurmstepd waits up to a minute for the step's output.
  if (step.is_af && ++step.tasks_ended >= step.tasks) sweep_step();
  return 0;
}

int step_exit(spank_t) {
  if (state().is_af) sweep_step();
  return 0;
}

}  // namespace af::spank
