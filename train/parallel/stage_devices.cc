// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/stage_devices.h"

#include <torch/cuda.h>

#include <cstdlib>
#include <set>

#include "af/train/pipeline.h"
#include "common/error.h"

namespace af::train {
namespace {

constexpr const char* kAskForTwo = "ask for two with --af-gpus-per-worker=2";

std::string has(int gpus) {
  if (gpus == 0) return "has no GPU that libtorch can use";
  return fmt::format("has {} GPU{}", gpus, gpus == 1 ? "" : "s");
}

}  // namespace

StageDevices stage_devices_of_process() {
  StageDevices process;
  if (torch::cuda::is_available()) process.gpus = static_cast<int>(torch::cuda::device_count());
  if (const char* text = std::getenv("AF_GPUS_PER_WORKER")) process.per_worker = std::atoi(text);
  return process;
}

std::optional<std::string> fault_of_devices(const std::vector<std::string>& names,
                                            const std::vector<at::Device>& devices,
                                            const StageDevices& process) {
  std::set<int> used;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const at::Device& device = devices[i];
    if (!device.is_cuda()) continue;
    used.insert(device.index());
    if (device.index() >= process.gpus)
      return fmt::format("stage {} is to be on {}, and this process {}: {}{}", names[i],
                         device.str(), has(process.gpus), kAskForTwo,
                         process.gpus == 0 ? ", or put all stages on the CPU" : "");
  }
  // A process sees all GPUs of its job on the node, those of other ranks among them.
  if (process.per_worker > 0 && static_cast<int>(used.size()) > process.per_worker)
    return fmt::format(
        "the stages are on {} GPUs, and a worker of this job has {}: the others are other ranks': "
        "{}",
        used.size(), process.per_worker, kAskForTwo);
  return std::nullopt;
}

std::vector<at::Device> choose_stage_devices(int stages, const StageDevices& process) {
  std::vector<at::Device> devices;
  std::vector<std::string> names;
  for (int i = 0; i < stages; ++i) {
    names.push_back(std::to_string(i));
    devices.emplace_back(process.gpus > 0 ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i))
                                          : at::Device(at::kCPU));
  }
  if (const auto fault = fault_of_devices(names, devices, process)) throw Error(*fault);
  return devices;
}

std::vector<at::Device> devices_for_stages(int stages) {
  return choose_stage_devices(stages, stage_devices_of_process());
}

}  // namespace af::train
