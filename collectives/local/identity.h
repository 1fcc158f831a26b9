// SPDX-License-Identifier: Apache-2.0
// What tells one node from another, one process from another, one world from another.
#pragma once

#include <string>

namespace af::local {

// Equal for two processes only if shared memory can be passed between them through an abstract Unix
// socket: same boot of the same machine, same network namespace, same user.
std::string node_identity();
std::string host_name();
// Random hexadecimal characters from the kernel, for names and secrets.
std::string random_hex(std::size_t characters);

}  // namespace af::local
