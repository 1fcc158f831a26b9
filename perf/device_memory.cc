// SPDX-License-Identifier: Apache-2.0
#include "perf/device_memory.h"

#include <cstring>

#ifdef AF_HAVE_CUDA
#include "collectives/cuda/runtime.h"
#endif

namespace af::perf {
namespace {

// A communicator on a device does not come into being without CUDA, so this is not reached then.
void copy_on_device([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                    [[maybe_unused]] std::size_t bytes, [[maybe_unused]] bool to_device,
                    [[maybe_unused]] int device) {
#ifdef AF_HAVE_CUDA
  cuda::DeviceGuard guard(device);
  AF_CUDA(memcpy(to, from, bytes, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost));
#endif
}

}  // namespace

void copy_in(void* to, const void* host, std::size_t bytes, int device) {
  if (bytes == 0) return;
  if (device < 0) {
    std::memcpy(to, host, bytes);
  } else {
    copy_on_device(to, host, bytes, true, device);
  }
}

void copy_out(void* host, const void* from, std::size_t bytes, int device) {
  if (bytes == 0) return;
  if (device < 0) {
    std::memcpy(host, from, bytes);
  } else {
    copy_on_device(host, from, bytes, false, device);
  }
}

}  // namespace af::perf
