// SPDX-License-Identifier: Apache-2.0
// Writing much memory without reading it first: a store that goes through the cache fetches the
// line that it overwrites, a third of all traffic of a large copy.
#pragma once

#include <cstddef>

namespace af {

// From this size on the output of an operation would push itself out of the cache before anybody
// reads it. Not asked of the system: what it calls the third-level cache is that of the whole
// machine, however many programs share it.
inline constexpr std::size_t kStreamingBytes = std::size_t(8) << 20;

// As memcpy. What it wrote may be published when it has returned.
void copy_past_cache(void* to, const void* from, std::size_t bytes);

}  // namespace af
