// SPDX-License-Identifier: Apache-2.0
// Device memory for Communicator::allocate() of the nccl backend.
#pragma once

#include <memory>

#include "collectives/backend.h"

namespace af::nccl {

// From ncclMemAlloc where NCCL has it (the other GPUs of the node can map such memory, and NCCL can
// then do without copies), else from cudaMalloc. Zeroed.
std::shared_ptr<Memory> make_device_memory(int device, std::size_t bytes);

}  // namespace af::nccl
