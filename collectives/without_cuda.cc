// SPDX-License-Identifier: Apache-2.0
// Stands for collectives/cuda and collectives/nccl where af is built without the headers of CUDA
// and NCCL: null means "not built in" (backend.h, device_staging.h).
#include "collectives/backend.h"
#include "collectives/device_staging.h"

namespace af {

std::unique_ptr<Backend> make_nccl_backend(const Options&) {
  return nullptr;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the other definition keeps it
std::unique_ptr<DeviceStaging> make_device_staging(const Options&, DeviceStaging::Allocate) {
  return nullptr;
}

}  // namespace af
