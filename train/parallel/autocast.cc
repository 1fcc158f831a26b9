// SPDX-License-Identifier: Apache-2.0
// libtorch 1.13 has functions of their own for each kind of device, later ones take the device.
#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "af/train/precision.h"
#include "common/error.h"

namespace af::train {
namespace {

struct State {
  bool enabled;
  at::ScalarType type;
};

#if TORCH_VERSION_MAJOR < 2
State get(at::DeviceType device) {
  if (device == at::kCPU)
    return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
}
void set(at::DeviceType device, const State& state) {
  if (device == at::kCPU) {
    at::autocast::set_autocast_cpu_dtype(state.type);
    at::autocast::set_cpu_enabled(state.enabled);
  } else {
    at::autocast::set_autocast_gpu_dtype(state.type);
    at::autocast::set_enabled(state.enabled);
  }
}
#else
State get(at::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}
void set(at::DeviceType device, const State& state) {
  at::autocast::set_autocast_dtype(device, state.type);
  at::autocast::set_autocast_enabled(device, state.enabled);
}
#endif

}  // namespace

Autocast::Autocast(at::DeviceType device, Precision precision) : device_(device) {
  if (device != at::kCPU && device != at::kCUDA)
    throw Error::format("Autocast: for the CPU and for CUDA, not for {}",
                        c10::DeviceTypeName(device, /*lower_case=*/true));
  if (device == at::kCPU && precision == Precision::f16)
    throw Error("Autocast: the CPU has no f16 (bf16 or f32)");
  const State before = get(device);
  enabled_before_ = before.enabled;
  type_before_ = before.type;
  at::autocast::increment_nesting();
  if (precision == Precision::f32)
    set(device, {false, before.type});
  else
    set(device, {true, type_of(precision)});
}

Autocast::~Autocast() {
  // The cache has the parameters in the half type; the optimizer changes them behind this.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set(device_, {enabled_before_, type_before_});
}

}  // namespace af::train
