// SPDX-License-Identifier: Apache-2.0
// What it takes to work in a person's own environment (Pixi, conda or venv prefix) without a shell:
// its bin first in PATH, and the variable by which its tools know where they are. Nothing in the
// prefix is run or written (case B43: read-only prefixes, races of N ranks).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/paths.h"

namespace af::spank {

// The PATH that programs get where a job has none (--export=NONE).
inline constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

// Variables to set, for a PATH as it is ("" = unset). Applying it twice is applying it once.
std::vector<std::pair<std::string, std::string>> activation(const std::string& prefix,
                                                            const std::string& path,
                                                            const FileView& files);

}  // namespace af::spank
