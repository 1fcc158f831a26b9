// SPDX-License-Identifier: Apache-2.0
// The one srun that a front starts: its command line and its environment. Pure.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/launch_context.h"
#include "launcher/options.h"

namespace af {

struct StepCommand {
  std::vector<std::string> argv;
  Environment environment;
};

struct StepFacts {
  int tasks = 1;
  std::string launcher;       // path of af-launch, the same on all nodes
  std::string front;          // "10.0.0.1:4711"
  std::string run_directory;  // absolute
  int generation = 0;
  std::string srun_shield;  // libaf_srun_shield.so; empty: none
  pid_t front_pid = 0;
  bool read_stdin = true;
};

// Slurm's variables in a job that srun must not take as options of a step of ours.
std::span<const char* const> variables_not_for_a_step();

StepCommand step_command(const Options& options, const LaunchContext& context,
                         const Environment& inherited, const StepFacts& facts);

}  // namespace af
