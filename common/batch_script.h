// SPDX-License-Identifier: Apache-2.0
// Reads a batch script's text for `#SBATCH --af-…` lines, by the rules of sbatch: a directive
// starts in column 0 with exactly "#SBATCH" and stands before the first line that is neither blank
// nor a comment. Slurm ignores every other one silently; af does not. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace af {

struct ScriptWarning {
  int line;          // from 1
  std::string text;  // "line 7: '#SBATCH --af-max-workers=4' is ignored by Slurm: …"
};

// Directives with an af option that sbatch does not see: after the first command, indented, or
// "#sbatch". Not "##SBATCH" and "# SBATCH", by which people comment a line out, and not those
// inside a here-document, which belong to another script.
std::vector<ScriptWarning> find_ignored_settings(std::string_view script);

struct ScriptSetting {
  int line;
  std::string name;   // "af-max-workers", as written, not checked
  std::string value;  // "" if none
};
// Those that sbatch does see, in order.
std::vector<ScriptSetting> settings_in_script(std::string_view script);

}  // namespace af
