// SPDX-License-Identifier: Apache-2.0
#include "cli/script_settings.h"

#include <cstdio>

#include "common/batch_script.h"
#include "common/error.h"

namespace af::cli {

std::vector<GivenSetting> given_in_script(std::string_view text, const std::string& file) {
  std::vector<GivenSetting> given;
  for (const ScriptSetting& setting : settings_in_script(text)) {
    const SettingSpec* spec = find_setting_or_abbreviation(setting.name);
    if (!spec)
      throw Error::format("{}:{}: {}", file, setting.line, unknown_setting_message(setting.name));
    given.push_back({spec->id, setting.value, Source::kScript});
  }
  return given;
}

std::size_t warn_of_ignored_settings(std::string_view text, const std::string& file) {
  const std::vector<ScriptWarning> warnings = find_ignored_settings(text);
  for (const ScriptWarning& warning : warnings)
    std::fputs(fmt::format("{}: {}\n", file, warning.text).c_str(), stderr);
  return warnings.size();
}

}  // namespace af::cli
