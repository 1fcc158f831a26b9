// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/digits/world.h"

#include <torch/cuda.h>

#include <cstdlib>

namespace digits {

at::Device device_of_rank() {
  if (!torch::cuda::is_available()) return at::kCPU;
  const char* local_rank = std::getenv("LOCAL_RANK");
  return {at::kCUDA, static_cast<c10::DeviceIndex>(local_rank != nullptr ? atoi(local_rank) : 0)};
}

af::World join(at::Device device) {
  af::WorldOptions options = af::World::options_from_environment();
  if (device.is_cuda())
    options.communicator.device =
        static_cast<int>(device.index());  // NOLINT(bugprone-signed-char-misuse)
  try {
    return af::World(options);
  } catch (const af::CommunicatorError& error) {
    if (error.kind() != af::CommunicatorError::Kind::aborted) throw;
    std::exit(0);
  }
}

}  // namespace digits
