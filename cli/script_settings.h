// SPDX-License-Identifier: Apache-2.0
// The af settings of a batch script, as the plugin would be given them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/settings.h"

namespace af::cli {

// Throws Error with file, line and the nearest name for an option that does not exist.
std::vector<GivenSetting> given_in_script(std::string_view text, const std::string& file);

// Prints a line on stderr for each setting that Slurm ignores; returns how many.
std::size_t warn_of_ignored_settings(std::string_view text, const std::string& file);

}  // namespace af::cli
