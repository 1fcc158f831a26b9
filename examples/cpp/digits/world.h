// SPDX-License-Identifier: Apache-2.0
// Where this rank computes, and its connection to the others.
#pragma once

#include <c10/core/Device.h>

#include "af/communicator.h"

namespace digits {

// The GPU that LOCAL_RANK names where libtorch can use one, else the CPU.
at::Device device_of_rank();

// The ranks of this world, for gradients on `device`.
af::Communicator connect(at::Device device);

}  // namespace digits
