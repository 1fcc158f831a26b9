// SPDX-License-Identifier: Apache-2.0
// The stream that operations of a device are put on, as the communicator takes it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "af/communicator.h"

namespace af::train {

// Host memory has none. On a device, only the default stream has a handle without CUDA's headers:
// on another one everything is waited for, which is right and slower.
inline Stream current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (stream.id() != 0) stream.synchronize();
  return nullptr;
}

}  // namespace af::train
