// SPDX-License-Identifier: Apache-2.0
// An operation in 32 bits, by which ranks see that they are in the same one.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/backend.h"

namespace af::local {

// kind, type, op and root, as far as the kind uses them.
std::uint32_t signature_of(const Operation& operation);
// The words for what another rank called.
std::string describe_call(std::uint32_t signature, std::uint64_t count);

}  // namespace af::local
