// SPDX-License-Identifier: Apache-2.0
// What this agent knows of itself before the bootstrap.
#pragma once

#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/launch_context.h"
#include "launcher/port.h"
#include "launcher/worker.h"

namespace af {

struct OwnWorker {
  Worker worker;
  std::string interface;  // of worker.address
  HeldPort port;          // worker.port, held until the plan says whose is MASTER_PORT
  std::vector<std::string> warnings;
};

// `program`: resolved path of what the ranks run. Throws Error.
OwnWorker find_own_worker(const LaunchContext& context, const Environment& environment,
                          const std::string& program);

// Installed beside this program: lib/NAME next to bin/; empty if it is not there.
std::string installed_library(const std::string& name);
std::string own_program_path();
// The folder of the Python client `af`: python/ of the installation or of the repository this
// program was built in; empty if it is in neither.
std::string installed_python();

}  // namespace af
