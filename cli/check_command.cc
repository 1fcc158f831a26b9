// SPDX-License-Identifier: Apache-2.0
// `af check [SCRIPT]`: is the site file right, and will Slurm see the script's settings?
#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/script_settings.h"
#include "cli/site_lookup.h"
#include "common/atomic_file.h"
#include "common/request.h"

namespace af::cli {

int check_command(const std::string& config, const std::string& script) {
  const Site site = site_for_tools(config);
  const std::string text = script.empty() ? "" : read_file(script);
  int gpus = 0;
  for (const GpuClass& gpu : site.gpus) gpus += gpu.total;
  std::fputs(fmt::format("{}: {} kinds of GPU, {} GPUs{}\n", site.file, site.gpus.size(), gpus,
                         site.enabled ? "" : "; switched off (enabled: no)")
                 .c_str(),
             stdout);
  if (script.empty()) return 0;

  const std::size_t ignored = warn_of_ignored_settings(text, script);
  const std::vector<GivenSetting> given = given_in_script(text, script);
  const Settings settings = resolve_settings(given, site.limits);
  if (!given.empty()) build_request(settings, site, {});
  std::fputs(fmt::format("{}: {} af setting{} that Slurm sees, {} that it ignores\n", script,
                         given.size(), given.size() == 1 ? "" : "s", ignored)
                 .c_str(),
             stdout);
  return ignored == 0 ? 0 : 1;
}

}  // namespace af::cli
