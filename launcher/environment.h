// SPDX-License-Identifier: Apache-2.0
// A process environment as a sorted map, so that what builds one is a pure function.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace af {

using Environment = std::map<std::string, std::string>;

// Where programs are looked for when there is no PATH.
inline constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

// This process's environment; entries without '=' are dropped.
Environment current_environment();

// "NAME=value" strings for execve.
std::vector<std::string> environment_strings(const Environment& environment);

// The value, or `missing`. A variable that is set to nothing counts as set: it gives "".
std::string value_or(const Environment& environment, const std::string& name,
                     const std::string& missing = "");
// The value as a whole number ≥ 0; `missing` where it is unset or no such number.
long number_or(const Environment& environment, const std::string& name, long missing);

// The environment of the program of a run on a worker of another job: `run`'s, but what describes a
// job, a node or a GPU from `here`.
Environment merge_environment(Environment run, const Environment& here);

void erase_prefix(Environment& environment, std::string_view prefix);

}  // namespace af
