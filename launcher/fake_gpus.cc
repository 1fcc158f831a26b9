// SPDX-License-Identifier: Apache-2.0
// FAKE GPUs: the sandbox's nodes have none, and a file says what NVML would (docs/sandbox.md).
#include <nlohmann/json.hpp>

#include <filesystem>

#include "common/atomic_file.h"
#include "common/error.h"
#include "launcher/gpu_inventory.h"

namespace af {
namespace {

class FakeGpuSource : public GpuSource {
 public:
  explicit FakeGpuSource(std::string path) : path_(std::move(path)) {}
  std::string name() const override { return "fake"; }

  std::vector<Gpu> all_gpus() override {
    std::vector<Gpu> gpus;
    try {
      for (const nlohmann::json& entry : nlohmann::json::parse(read_file(path_))) {
        Gpu gpu;
        gpu.uuid = entry.value("uuid", "");
        gpu.index = entry.value("index", -1);
        gpu.type = entry.value("type", "");
        gpu.parent_uuid = entry.value("parent_uuid", gpu.uuid);
        gpu.memory_gb = entry.value("memory_gb", 0.0);
        gpu.driver = entry.value("driver", "");
        gpu.mig = gpu.uuid.rfind("MIG-", 0) == 0;
        gpus.push_back(gpu);
      }
    } catch (const nlohmann::json::exception& error) {
      throw Error::format("the file of fake GPUs {} cannot be read: {}", path_, error.what());
    }
    return gpus;
  }

 private:
  std::string path_;
};

}  // namespace

std::unique_ptr<GpuSource> fake_gpu_source(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  return std::make_unique<FakeGpuSource>(path);
}

}  // namespace af
