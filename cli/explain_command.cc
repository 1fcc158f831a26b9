// SPDX-License-Identifier: Apache-2.0
// `af explain`: what --af-explain says, without a cluster.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cli/commands.h"
#include "cli/script_settings.h"
#include "cli/site_lookup.h"
#include "common/atomic_file.h"
#include "common/explain.h"
#include "common/paths.h"

namespace af::cli {
namespace {

const char* lookup(const char* name) {
  return std::getenv(name);
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

}  // namespace

int explain_command(const ExplainArguments& arguments) {
  const Site site = site_for_tools(arguments.config);
  std::vector<GivenSetting> given;
  if (arguments.tool == Tool::kSbatch && !arguments.trailer.empty()) {
    const std::string& script = arguments.trailer.front();
    const std::string text = read_file(script);
    warn_of_ignored_settings(text, script);
    given = given_in_script(text, script);
  }
  // As in the plugin: inside a job the variables describe that job.
  if (!std::getenv("SLURM_JOB_ID"))
    for (GivenSetting& one : settings_from_environment(lookup)) given.push_back(std::move(one));
  given.insert(given.end(), arguments.settings.begin(), arguments.settings.end());

  const Settings settings = resolve_settings(given, site.limits);
  const Request request = build_request(settings, site, arguments.native);
  const std::string here = std::filesystem::current_path();
  if (!settings.env.empty())
    check_env_prefix(absolute_path(settings.env, here), site.storage, real_file_view());
  const std::string text =
      explain(settings, site, arguments.native, request, join(arguments.trailer));
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace af::cli
