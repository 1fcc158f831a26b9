// SPDX-License-Identifier: Apache-2.0
// The subcommands of `af`. Each returns its exit code, writes results to stdout and throws Error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/native_options.h"
#include "common/settings.h"

namespace af::cli {

struct ExplainArguments {
  std::string config;                  // --config
  Tool tool = Tool::kSbatch;           // --tool
  std::vector<GivenSetting> settings;  // the --af-* options of the line
  NativeOptions native;                // Slurm's own options of the line
  std::vector<std::string> trailer;    // script or program, with its arguments
};
// What the plugin would ask Slurm for. Reads the script's #SBATCH --af-… lines if it can.
int explain_command(const ExplainArguments& arguments);

// The table of settings with the site's limits; `markdown`: the shipped table, for
// docs/settings.md.
int settings_command(const std::string& config, bool markdown);

// Reads the site file, and the script if one is given. 1 if there is something to say.
int check_command(const std::string& config, const std::string& script);

}  // namespace af::cli
