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

// The nearest name; nullopt if none is near enough to be meant. A name that contains `wrong` counts
// as near ("gpu-memory" means "min-gpu-memory-gb").
std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> names);

// ", did you mean 'x'?" or "".
std::string did_you_mean(std::string_view wrong, std::span<const std::string> names);

}  // namespace af
