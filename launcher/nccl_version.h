// SPDX-License-Identifier: Apache-2.0
// Which NCCL the ranks would load.
#pragma once

#include <string>

namespace af {

// "2.18.3", or empty if none is found: asks the library itself. Looks in the Python environment of
// the program first (PyTorch's wheels bring their own), then where the loader looks.
// `program`: resolved path, e.g. /work/env/bin/python. Loads the library: only where GPUs are.
std::string find_nccl_version(const std::string& program);

// 21803 -> "2.18.3"; before 2.9 the number was made differently: 2708 -> "2.7.8".
std::string nccl_version_text(int code);

}  // namespace af
