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

af::Communicator connect(at::Device device) {
  af::Options options = af::Communicator::options_from_environment();
  if (device.is_cuda())
    options.device = static_cast<int>(device.index());  // NOLINT(bugprone-signed-char-misuse)
  return af::Communicator(options);
}

}  // namespace digits
