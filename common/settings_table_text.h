// SPDX-License-Identifier: Apache-2.0
// The table of settings as text: `af settings`, and the table of docs/settings.md.
#pragma once

#include <string>

#include "common/settings.h"

namespace af {

// "1 to 16", "1 or 2", "at least 1", "a path", "-".
std::string range_text(const SettingSpec& spec, const SettingLimit& limit);

// One line a setting, with the limits and defaults given.
std::string settings_text(const SettingLimits& limits);

// The shipped table in Markdown.
std::string settings_markdown();

}  // namespace af
