// SPDX-License-Identifier: Apache-2.0
// sbatch, srun, salloc: registers the options, translates environment defaults, and receives each
// option as it is parsed.
//
// The order is Slurm's (sbatch.c, opt.c; the same from 20.11 to 26.05): init; then #SBATCH lines,
// variables and command line, our callback at each option's turn; verification; init_post_opt. In
// init a set option would be wiped; in init_post_opt gpus-per-task is too late from 23.11 on. So
// the request is set in the callback.
#include <dlfcn.h>
#include <errno.h>
#include <sys/auxv.h>

#include <cstdint>
#include <cstdlib>
#include <exception>

#include "spank/inherited_environment.h"
#include "spank/misspelled_options.h"
#include "spank/report.h"
#include "spank/step_cpus.h"
#include "spank/submission.h"

namespace af::spank {
namespace {

Submission* current = nullptr;

// Slurm does not say where an option came from; the address of its text does. A variable's text is
// the very one that getenv() gives, the command line's lies where the kernel put it, and a #SBATCH
// line's was allocated.
Source source_of(SettingId id, const char* text) {
  if (!text) return Source::kCommandLine;  // a flag: no matter
  const char* variable = std::getenv(spank_variable(spec_of(id)).c_str());
  if (text == variable) return Source::kEnvironment;
  // Arguments, then variables, then the name of the executable: the kernel's order.
  const auto begin = reinterpret_cast<std::uintptr_t>(program_invocation_name);
  const auto address = reinterpret_cast<std::uintptr_t>(text);
  if (begin <= address && address < getauxval(AT_EXECFN)) return Source::kCommandLine;
  return submission().tool() == Tool::kSbatch ? Source::kScript : Source::kCommandLine;
}

int option_given(int value, const char* text, int remote) noexcept {
  if (remote) return 0;
  try {
    if (value == kSatelliteValue) {
      submission().make_satellite();
      return 0;
    }
    const auto id = static_cast<SettingId>(value);
    submission().add(id, text, source_of(id, text));
    return 0;
  } catch (const std::exception& error) {
    report_error(error.what());
    return -1;
  }
}

}  // namespace

Submission& submission() {
  return *current;
}

Tool current_tool() {
  // The commands export a struct of their own beside `opt`: sbopt, saopt, sropt. salloc's and
  // sbatch's context is the same, and the name of the program may be a link's.
  if (dlsym(RTLD_DEFAULT, "sbopt")) return Tool::kSbatch;
  if (dlsym(RTLD_DEFAULT, "saopt")) return Tool::kSalloc;
  if (dlsym(RTLD_DEFAULT, "sropt")) return Tool::kSrun;
  const std::string name = program_invocation_short_name;
  if (name == "srun") return Tool::kSrun;
  return name == "salloc" ? Tool::kSalloc : Tool::kSbatch;
}

int submit_init(spank_t spank, const PluginArguments& arguments) {
  const Tool tool = current_tool();
  const bool in_job = std::getenv("SLURM_JOB_ID") != nullptr;
  current = new Submission(arguments, tool, in_job);
  register_options(spank, option_given);
  if (in_job) {
    forget_outer_job(tool);
    if (tool == Tool::kSrun) drop_worker_cpus_if_step_does_not_fit();
  } else {
    apply_environment_defaults();
  }
  explain_misspelled_options_at_exit();
  return 0;
}

}  // namespace af::spank
