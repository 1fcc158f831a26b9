// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/caller_state.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

namespace af::train {
namespace {

// From 2.x on they are part of at::ThreadLocalState.
#if TORCH_VERSION_MAJOR < 2
std::vector<at::ScalarType> autocast_types() {
  return {at::autocast::get_autocast_cpu_dtype(), at::autocast::get_autocast_gpu_dtype()};
}
void set_autocast_types(const std::vector<at::ScalarType>& types) {
  at::autocast::set_autocast_cpu_dtype(types[0]);
  at::autocast::set_autocast_gpu_dtype(types[1]);
}
#else
std::vector<at::ScalarType> autocast_types() {
  return {};
}
void set_autocast_types(const std::vector<at::ScalarType>&) {}
#endif

}  // namespace

CallerState::CallerState(const std::vector<at::Device>& devices)
    : autocast_types_(autocast_types()) {
  for (const at::Device& device : devices)
    if (!device.is_cpu())
      streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void CallerState::run_with(at::Device device, const std::function<void()>& work) const {
  const at::ThreadLocalStateGuard guard(state_);
  // The thread is the pipeline's own: what the guard does not set back stays until the next time.
  set_autocast_types(autocast_types_);
  for (const c10::Stream& stream : streams_)
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  const c10::DeviceGuard on_device(device);
  work();
}

}  // namespace af::train
