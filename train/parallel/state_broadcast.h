// SPDX-License-Identifier: Apache-2.0
// A State from one rank to all.
#pragma once

#include <c10/core/Device.h>

#include "af/communicator.h"
#include "af/train/state_file.h"

namespace af::train {

// Collective. `mine` is what `root` gives; the others' is not looked at and may be null. Returns
// what the root gave, in tensors of its own on `device`, which is where the communicator's memory
// is; the root and ranks that do not want it (`wanted` is false) get an empty State. Throws
// CommunicatorError; nothing is changed before all has come.
State broadcast_state(Communicator& world, int root, const State* mine, bool wanted,
                      at::Device device);

}  // namespace af::train
