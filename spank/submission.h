// SPDX-License-Identifier: Apache-2.0
// One run of sbatch, srun or salloc with this plugin loaded: the hooks of the submit side and the
// state they share. Everything here runs as the person, in the command's only thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/request.h"
#include "common/settings.h"
#include "common/site.h"
#include "spank/plugin_arguments.h"
#include "spank/request_writer.h"
#include "spank/slurm_api.h"
#include "spank/slurm_options.h"

namespace af::spank {

// What the settings come to, for the hook that has seen all options.
struct Decision {
  Settings settings;
  NativeOptions native;
  Request request;
};

class Submission {
 public:
  Submission(const PluginArguments& arguments, Tool tool, bool in_job)
      : arguments_(arguments), tool_(tool), in_job_(in_job) {}

  // An af option as a source gave it; then the Slurm request is worked out anew and set. Mistakes
  // are not final yet (a later source may replace the value): nothing is set then, and decide()
  // says what is wrong when all is known.
  void add(SettingId id, const char* text, Source source);

  // kSatelliteOption was given.
  void make_satellite();

  // Whether this is to be an af job: an option on the command line or in the script says so, or a
  // worker setting in the environment. Other variables are defaults of af jobs: an AF_ENV in
  // somebody's .bashrc must not turn each plain sbatch into a GPU job.
  bool uses_af() const;
  // The final word, with the request set. Throws Error for what must be refused.
  Decision decide();

  // Throws Error if the site file is wrong.
  const Site& site();
  // Throws Error if this program's options are out of reach.
  SlurmOptions& slurm();
  Tool tool() const { return tool_; }
  bool in_job() const { return in_job_; }

  // Set when the options of the (first) component are complete.
  bool options_complete = false;

 private:
  enum class Ahead { kNo, kYes };  // whether native options further on the line are looked for
  void work_out_early();
  Decision work_out(Ahead ahead);
  NativeOptions native_options(Ahead ahead);

  const PluginArguments arguments_;
  const Tool tool_;
  const bool in_job_;
  std::vector<GivenSetting> given_;
  bool satellite_ = false;
  std::optional<Site> site_;
  std::unique_ptr<SlurmOptions> slurm_;
  std::unique_ptr<RequestWriter> writer_;
};

// This process's. Valid after submit_init(); never destroyed, since exit handlers use it.
Submission& submission();

// Hooks of sbatch, srun and salloc (plugin.cc).
int submit_init(spank_t spank, const PluginArguments& arguments);  // submit_options.cc
int submit_all_options_seen(spank_t spank);                        // submit_checks.cc

// Registers every row of the settings table and kSatelliteOption with Slurm, in any context
// (option_registry.cc). The callback's first argument is the SettingId, or kSatelliteValue.
inline constexpr int kSatelliteValue = static_cast<int>(kSettingCount);
using OptionCallback = int (*)(int, const char*, int);
void register_options(spank_t spank, OptionCallback callback);

// Where the site file is looked for when plugstack.conf does not name one (config=PATH).
const std::vector<std::filesystem::path>& site_files();

// Which command this process is.
Tool current_tool();

}  // namespace af::spank
