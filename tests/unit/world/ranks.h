// SPDX-License-Identifier: Apache-2.0
// What the ranks of these tests do: they sum, step after step, in whatever world they are.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "af/world.h"
#include "tests/unit/world/fake_agent.h"

namespace af::test {

WorldOptions elastic_options(const std::string& socket,
                             std::chrono::milliseconds timeout = std::chrono::seconds(60));

// One step: sums 1 of each rank in every one of `count` elements, with the flags, and agrees.
// Throws CommunicatorError if the world fails and std::runtime_error if a sum is wrong.
void sum_once(World& world, std::size_t count = 64, bool at_checkpoint = false);

// Sums, from world to world, until told to save or to leave; says `saved`. What it gives: "saved
// after S" or "left: after S", S steps. `on_world` runs in each new world before its first sum.
std::string sum_until_told(World& world, std::size_t count = 64,
                           const std::function<void(World&)>& on_world = {});

}  // namespace af::test
