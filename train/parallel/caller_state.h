// SPDX-License-Identifier: Apache-2.0
// What libtorch keeps for each thread and a stage's thread takes over from the caller of a step.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

namespace af::train {

// Grad mode, autocast and its types, and the current stream of each of the devices.
class CallerState {
 public:
  // Of the calling thread.
  explicit CallerState(const std::vector<at::Device>& devices);
  // Runs `work` with it, and `device` as the current one.
  void run_with(at::Device device, const std::function<void()>& work) const;

 private:
  at::ThreadLocalState state_;
  std::vector<c10::Stream> streams_;
  std::vector<at::ScalarType> autocast_types_;  // CPU, GPU; where the state does not have them
};

}  // namespace af::train
