// SPDX-License-Identifier: Apache-2.0
// By atexit(), since slurm_spank_exit is called in sbatch and salloc but not in srun 22.05. When
// Slurm unloads the plugin before that, glibc runs the handler on unloading.
#include "spank/misspelled_options.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "common/atomic_file.h"
#include "common/batch_script.h"
#include "spank/command_line.h"
#include "spank/report.h"
#include "spank/submission.h"

namespace af::spank {
namespace {

pid_t registered_by = 0;

bool is_unknown(std::string_view name) {
  if (!name.starts_with("af-")) return false;
  for (const SettingSpec& spec : settings_table()) {
    // An abbreviation is either right or ambiguous, and then getopt has listed what it may mean.
    if (std::string_view(spec.name).starts_with(name)) return false;
  }
  return true;
}

void explain() noexcept {
  // A child that srun or salloc has forked is not the command.
  if (registered_by != getpid() || submission().options_complete) return;
  try {
    const std::vector<std::string> words = own_command_line();
    std::string script;
    if (submission().tool() == Tool::kSbatch) {
      try {
        script = read_file(likely_operand(words));
      } catch (const std::exception&) {
        // No script, or not readable: then Slurm has said so.
      }
    }
    const std::string message = misspelled_option_message(words, script);
    if (!message.empty()) report_error(message);
  } catch (const std::exception&) {
    // The command has failed already, with Slurm's own words.
  }
}

}  // namespace

std::string misspelled_option_message(std::span<const std::string> words, std::string_view script) {
  for (const std::string& option : likely_options(words)) {
    if (option.starts_with("--") && is_unknown(std::string_view(option).substr(2))) {
      return unknown_setting_message(option);
    }
  }
  for (const ScriptSetting& setting : settings_in_script(script)) {
    if (is_unknown(setting.name)) return unknown_setting_message(setting.name);
  }
  return "";
}

void explain_misspelled_options_at_exit() {
  registered_by = getpid();
  std::atexit(explain);
}

}  // namespace af::spank
