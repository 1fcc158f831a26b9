// SPDX-License-Identifier: Apache-2.0
// A number that is the same on two ranks where their tensors are, to the bit.
#pragma once

#include <cstdint>

#include "af/train/state_file.h"

namespace af::train {

// Of all tensors in the state, in their order. Host memory: CRC-32, at the speed of reading it.
// Tensors of a GPU are summed up there as words, so that they need not come to the host.
uint64_t hash_of(const State& state);

}  // namespace af::train
