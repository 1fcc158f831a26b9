// SPDX-License-Identifier: Apache-2.0
// Where this rank computes, and its connection to the others.
#pragma once

#include <c10/core/Device.h>

#include "af/world.h"

namespace digits {

// The GPU that LOCAL_RANK names where libtorch can use one, else the CPU.
at::Device device_of_rank();

// The ranks that train together, for gradients on `device`. Blocks until the launcher has formed
// the world; ends the program, with exit code 0, if this rank is not needed after all.
af::World join(at::Device device);

}  // namespace digits
