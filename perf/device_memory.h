// SPDX-License-Identifier: Apache-2.0
// Copies between host memory and where a communicator works (device < 0: host memory as well).
#pragma once

#include <cstddef>

namespace af::perf {

void copy_in(void* to, const void* host, std::size_t bytes, int device);
void copy_out(void* host, const void* from, std::size_t bytes, int device);

}  // namespace af::perf
