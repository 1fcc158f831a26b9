// SPDX-License-Identifier: Apache-2.0
// By atexit(), since slurm_spank_exit is called in sbatch and salloc but not in srun 22.05. When
// Slurm unloads the plugin before that, glibc runs the handler on unloading.
#include "spank/misspelled_options.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>

#include "common/atomic_file.h"
#include "common/batch_script.h"
#include "spank/command_line.h"
#include "spank/report.h"
#include "spank/submission.h"

namespace af::spank {
namespace {

pid_t registered_by = 0;

bool is_unknown(std::string_view name) {
  if (!name.starts_with("af-") || name == kSatelliteOption) return false;
  for (const SettingSpec& spec : settings_table()) {
    // An abbreviation is either right or ambiguous, and then getopt has listed what it may mean.
    if (std::string_view(spec.name).starts_with(name)) return false;
  }
  return true;
}

// "" if there is none, or it cannot be read: then Slurm has said so. Regular files only, and not
// any length: a pipe or a terminal would keep a command that has failed already.
std::string script_text(const std::string& path) {
  constexpr std::uintmax_t kLargestScript = 8 << 20;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) ||
      std::filesystem::file_size(path, error) > kLargestScript || error)
    return "";
  try {
    return read_file(path);
  } catch (const std::exception&) {
    return "";
  }
}

void explain() noexcept {
  // A child that srun or salloc has forked is not the command.
  if (registered_by != getpid() || submission().options_complete) return;
  try {
    const std::vector<std::string> words = own_command_line();
    std::string script;
    if (submission().tool() == Tool::kSbatch) script = script_text(likely_operand(words));
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
