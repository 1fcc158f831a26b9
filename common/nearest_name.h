// SPDX-License-Identifier: Apache-2.0
// "Did you mean …": the nearest of some names to one that was mistyped.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace af {

// Letters to insert, delete, replace or swap with their neighbour to get from `a` to `b`.
int edit_distance(std::string_view a, std::string_view b);

// The nearest name; nullopt if none is near enough to be meant. Near is also a name that
// contains `wrong` ("gpu-memory": "min-gpu-memory-gb") or begins it ("environment": "env").
std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> names);

// ", did you mean 'x'?" or "".
std::string did_you_mean(std::string_view wrong, std::span<const std::string> names);

}  // namespace af
