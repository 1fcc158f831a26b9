// SPDX-License-Identifier: Apache-2.0
// Text that a model writes.
#pragma once

#include <cstdint>
#include <string>

#include "examples/cpp/gpt/model.h"

namespace gpt {

// Goes on from `prompt` byte by byte, until there are `length` more or an empty line. At a low
// temperature the model takes what it holds most likely. The same seed gives the same text.
std::string sample(Model& model, const std::string& prompt, int64_t length, double temperature,
                   uint64_t seed);

}  // namespace gpt
