// SPDX-License-Identifier: Apache-2.0
// Where the files of the repository are, for tests that read them.
#pragma once

#include <filesystem>

namespace af {

// The current directory (tests/run starts the tests in the root); else above build/tests/unit.
inline std::filesystem::path repository() {
  if (std::filesystem::exists("docs/settings.md")) return std::filesystem::current_path();
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../../..";
}

}  // namespace af
