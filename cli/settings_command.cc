// SPDX-License-Identifier: Apache-2.0
// `af settings`: the table of settings, for people and for docs/settings.md.
#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/site_lookup.h"
#include "common/settings_table_text.h"

namespace af::cli {

int settings_command(const std::string& config, bool markdown) {
  const std::string text =
      markdown ? settings_markdown() : settings_text(site_for_tools(config).limits);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace af::cli
