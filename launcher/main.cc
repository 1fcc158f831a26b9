// SPDX-License-Identifier: Apache-2.0
// af-launch: starts one rank of a program per worker. docs/launcher.md is its manual.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/agent_main.h"
#include "launcher/environment.h"
#include "launcher/exit_codes.h"
#include "launcher/front.h"
#include "launcher/keeper.h"
#include "launcher/launch_context.h"
#include "launcher/options.h"
#include "launcher/satellite_name.h"

namespace {

int complain(const char* text, int code) {
  fmt::print(stderr, "af-launch: {}\n", text);
  return code;
}

// A run outside Slurm gets a name that sorts by time and that no other run of this machine has.
std::string local_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return fmt::format("local-{}-{}", text, ::getpid());
}

int launch(af::Options options) {
  af::Environment environment = af::current_environment();
  if (!af::leave_inherited_run(environment))
    return complain(
        "this process is a rank of a world already; start the program in the batch script "
        "with af-launch instead",
        af::kExitBadSettings);
  af::LaunchContext context = af::read_launch_context(environment);
  if (context.run_id.empty()) context.run_id = local_run_id();
  // The name is known to all who may have to cancel them when the coordinator cannot any more.
  if (context.elastic && context.task == 0 && options.satellites.empty() && options.join.empty() &&
      !options.dry_run)
    options.satellites = af::satellite_name(context.run_id, af::satellite_nonce());
  if (context.mode == af::LaunchMode::kFront && !options.agent && options.join.empty())
    return af::run_front(options, context, environment);
  if (context.mode == af::LaunchMode::kLocal)
    context.tasks = options.workers > 0 ? options.workers : 1;
  if (context.mode == af::LaunchMode::kLocal && options.max_workers > 1 && context.tasks == 1) {
    context.elastic = true;
    context.max_workers = options.max_workers;
  }
  if (context.mode == af::LaunchMode::kStep && options.workers > 0 &&
      options.workers != context.tasks)
    throw af::Error::format("--workers={} but srun started {} tasks: use srun --ntasks={}",
                            options.workers, context.tasks, options.workers);
  const int code = af::run_under_keeper([&](int control) {
    try {
      return af::run_agent(options, context, environment, control);
    } catch (const std::exception& error) {
      const std::string where =
          context.mode == af::LaunchMode::kStep
              ? fmt::format(" (task {} on {})", context.task, context.node_name)
              : "";
      return complain((error.what() + where).c_str(), af::kExitCannotStart);
    }
  });
  // However the coordinator has ended: none of its satellites stays pending, and those that run
  // leave by themselves as well.
  if (context.elastic && context.mode == af::LaunchMode::kStep && context.task == 0 &&
      !options.satellites.empty()) {
    const std::string problem = af::cancel_satellites(options.satellites, environment);
    if (!problem.empty())
      complain(("the jobs named " + options.satellites + " may still be there: " + problem).c_str(),
               0);
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  af::ParsedOptions parsed;
  try {
    parsed = af::parse_options(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    // All tasks of a step have the same command line: one of them says what is wrong with it.
    const af::LaunchContext context = af::read_launch_context(af::current_environment());
    if (context.mode == af::LaunchMode::kStep && context.task != 0) return af::kExitBadSettings;
    return complain(error.what(), af::kExitBadSettings);
  }
  if (!parsed.options) {
    std::fputs(parsed.text.c_str(), stdout);
    return 0;
  }
  try {
    return launch(*parsed.options);
  } catch (const std::exception& error) {
    return complain(error.what(), af::kExitCannotStart);
  }
}
