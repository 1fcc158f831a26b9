// SPDX-License-Identifier: Apache-2.0
// How a satellite is submitted: the sbatch command line, its environment, its script. Pure.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "launcher/environment.h"

namespace af {

// What is the same for all satellites of a launch.
struct SatelliteFacts {
  std::string name;  // satellite_name()
  std::string run_id;
  std::string account;                  // the anchor's; empty: not said
  std::string launcher;                 // path of af-launch, the same on all nodes
  std::string coordinator;              // "10.0.0.1:4711"
  std::filesystem::path run_directory;  // absolute
  std::string srun_shield;              // libaf_srun_shield.so; empty: none
  bool verbose = false;
  Environment inherited;  // the anchor's: its AF_ settings, PATH, SLURM_CONF, …
};

struct SubmissionCommand {
  std::vector<std::string> argv;
  Environment environment;
  std::string script;  // for sbatch's stdin
};

// Where the satellites' own output goes: RUN_DIR/logs/satellites/<job>.log.
std::filesystem::path satellite_logs(const std::filesystem::path& run_directory);

// A satellite that could not live for this long (seconds) is not worth a submission.
inline constexpr double kShortestLife = 120;

// `seconds_left`: until the anchor's end; infinite: not known, and then no time is asked for.
// `longest`: that the site is known to take, in seconds. `excluded`: nodes.
SubmissionCommand satellite_submission(const SatelliteFacts& facts, double seconds_left,
                                       double longest, const std::set<std::string>& excluded);

}  // namespace af
