// SPDX-License-Identifier: Apache-2.0
// The SPANK plugin's door: which hook goes to which file, by context. Nothing is decided here.
//
//   sbatch, salloc (ALLOCATOR), srun (LOCAL)   submit_options.cc, submit_checks.cc   as the person
//   slurmstepd (REMOTE)                        step.cc                    as root, task_init as the
//   person slurmd, prolog, epilog                     nothing: no hook of ours runs there
//
// Hooks return 0 or -1 and never throw: up to Slurm 24.11 a positive code submits the job all the
// same, and an exception in slurmstepd drains a node.
#include <exception>

#include "spank/plugin_arguments.h"
#include "spank/report.h"
#include "spank/slurm_api.h"
#include "spank/step.h"
#include "spank/submission.h"

#define AF_EXPORT __attribute__((visibility("default")))

// Slurm compares major and minor of this number with its own and refuses the plugin if they differ.
// The tests build a second plugin for "another Slurm" with AF_SPANK_VERSION_OVERRIDE.
#ifdef AF_SPANK_VERSION_OVERRIDE
#define AF_SPANK_VERSION AF_SPANK_VERSION_OVERRIDE
#else
#define AF_SPANK_VERSION SLURM_VERSION_NUMBER
#endif

extern "C" {
AF_EXPORT extern const char plugin_name[];
AF_EXPORT extern const char plugin_type[];
AF_EXPORT extern const unsigned int plugin_version;
AF_EXPORT extern const unsigned int spank_plugin_version;
const char plugin_name[] = "af";
const char plugin_type[] = "spank";
const unsigned int plugin_version = AF_SPANK_VERSION;
const unsigned int spank_plugin_version = 1;
}

namespace af::spank {
namespace {

enum class Place { kSubmit, kStep, kElsewhere };

Place place() {
  if (!spank_context) return Place::kElsewhere;
  switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
      return Place::kSubmit;
    case S_CTX_REMOTE:
      return Place::kStep;
    default:
      return Place::kElsewhere;
  }
}

template <typename Hook>
int guarded(Hook hook) noexcept {
  try {
    return hook() == 0 ? 0 : -1;
  } catch (const std::exception& error) {
    report_error(error.what());
  } catch (...) {
    report_error("unknown error in the plugin");
  }
  return -1;
}

int init(spank_t spank, int argc, char** argv) {
  const PluginArguments arguments = parse_plugin_arguments(argc, argv);
  switch (place()) {
    case Place::kSubmit:
      return submit_init(spank, arguments);
    case Place::kStep:
      return step_init(spank, arguments);
    case Place::kElsewhere:
      break;
  }
  return 0;
}

int init_post_opt(spank_t spank) {
  switch (place()) {
    case Place::kSubmit:
      return submit_all_options_seen(spank);
    case Place::kStep:
      return step_options_seen(spank);
    case Place::kElsewhere:
      break;
  }
  return 0;
}

}  // namespace
}  // namespace af::spank

using af::spank::guarded;

extern "C" {

AF_EXPORT int slurm_spank_init(spank_t spank, int argc, char* argv[]) {
  return guarded([&] { return af::spank::init(spank, argc, argv); });
}

AF_EXPORT int slurm_spank_init_post_opt(spank_t spank, int, char*[]) {
  return guarded([&] { return af::spank::init_post_opt(spank); });
}

AF_EXPORT int slurm_spank_task_init(spank_t spank, int, char*[]) {
  return guarded([&] { return af::spank::step_task_init(spank); });
}

AF_EXPORT int slurm_spank_task_exit(spank_t spank, int, char*[]) {
  return guarded([&] { return af::spank::step_task_exit(spank); });
}

AF_EXPORT int slurm_spank_exit(spank_t spank, int, char*[]) {
  return guarded([&] {
    return af::spank::place() == af::spank::Place::kStep ? af::spank::step_exit(spank) : 0;
  });
}
}
