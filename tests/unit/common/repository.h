// SPDX-License-Identifier: Apache-2.0
// Where the files of the repository are, for tests that read them.
#pragma once

#include <filesystem>

namespace af {

// The test program is build/tests/unit/NAME, wherever it is started from.
inline std::filesystem::path repository() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../../..";
}

}  // namespace af
