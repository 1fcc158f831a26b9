// SPDX-License-Identifier: Apache-2.0
// A Worker as JSON, the form in which agents exchange it at the bootstrap and in which it is
// printed.
#pragma once

#include <nlohmann/json.hpp>

#include "launcher/worker.h"

namespace af {

void to_json(nlohmann::json& j, const Gpu& gpu);
void from_json(const nlohmann::json& j, Gpu& gpu);
void to_json(nlohmann::json& j, const Worker& worker);
void from_json(const nlohmann::json& j, Worker& worker);

}  // namespace af
