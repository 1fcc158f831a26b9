// SPDX-License-Identifier: Apache-2.0
// Which devices the stages of a pipeline can be on: pure functions.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

namespace af::train {

// What this process may use.
struct StageDevices {
  int gpus = 0;        // that libtorch sees
  int per_worker = 0;  // of them, as asked for with af-gpus-per-worker; 0: not known
};
StageDevices stage_devices_of_process();

// Why a stage cannot be on its device, in words for a person; nothing if all can.
std::optional<std::string> fault_of_devices(const std::vector<std::string>& names,
                                            const std::vector<at::Device>& devices,
                                            const StageDevices& process);

// One for each stage. Throws af::Error.
std::vector<at::Device> choose_stage_devices(int stages, const StageDevices& process);

}  // namespace af::train
