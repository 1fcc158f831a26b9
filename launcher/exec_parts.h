// SPDX-License-Identifier: Apache-2.0
// What every fork and exec here needs: pipes that no other child inherits, and the arrays that
// execve takes, made before the fork, since after it only async-signal-safe calls are allowed.
#pragma once

#include <string>
#include <vector>

#include "common/unique_fd.h"

namespace af {

struct Pipe {
  UniqueFd read, write;
};

// Both ends close-on-exec, blocking. Throws Error.
Pipe make_pipe();
void set_non_blocking(const UniqueFd& fd);

// For execve: the strings in their order, then a null. Good as long as `strings` is and stays as it
// is.
std::vector<char*> exec_pointers(std::vector<std::string>& strings);

}  // namespace af
