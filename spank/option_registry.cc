// SPDX-License-Identifier: Apache-2.0
// Gives Slurm the rows of the settings table as options. By spank_option_register: sbatch and
// salloc do not read a plugin's static spank_options table.
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "spank/submission.h"

namespace af::spank {

void register_options(spank_t spank, OptionCallback callback) {
  for (const SettingSpec& spec : settings_table()) {
    std::string usage = fmt::format("[af] {}", spec.help);
    if (spec.fallback) {
      usage += fmt::format(" (default {})", *spec.fallback);
    } else if (std::string_view words = spec.default_words; !words.empty() && words != "-") {
      usage += fmt::format(" (default: {})", words);
    }
    const bool flag = spec.type == SettingType::kFlag;
    // Slurm copies all of it; its fields are just not const.
    spank_option option = {const_cast<char*>(spec.name),
                           flag ? nullptr : const_cast<char*>(spec.argument),
                           usage.data(),
                           flag ? 0 : 1,
                           static_cast<int>(spec.id),
                           callback};
    if (spank_option_register) spank_option_register(spank, &option);
  }
  spank_option satellite = {const_cast<char*>(kSatelliteOption),
                            nullptr,
                            const_cast<char*>("[af] for af-launch itself: a worker of another job"),
                            0,
                            kSatelliteValue,
                            callback};
  if (spank_option_register) spank_option_register(spank, &satellite);
}

}  // namespace af::spank
