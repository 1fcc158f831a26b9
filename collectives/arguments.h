// SPDX-License-Identifier: Apache-2.0
// What makes a call wrong, whatever the backend.
#pragma once

#include "collectives/backend.h"

namespace af {

// Throws CommunicatorError (invalid_argument) that names the value. `rank`: the caller's.
void check_operation(const Operation& operation, int rank, int world_size);
void check_options(const Options& options);

}  // namespace af
