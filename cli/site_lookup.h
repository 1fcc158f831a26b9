// SPDX-License-Identifier: Apache-2.0
// The site file that a command of `af` uses.
#pragma once

#include <string>

#include "common/site.h"

namespace af::cli {

// --config, else $AF_CONFIG, else etc/af.yaml beside the bin/ of this program (installed) or beside
// build/ (in the source tree), else /etc/af/af.yaml or /etc/slurm/af.yaml.
Site site_for_tools(const std::string& config);

}  // namespace af::cli
