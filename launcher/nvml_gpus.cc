// SPDX-License-Identifier: Apache-2.0
// GPUs by NVML. The library belongs to the driver and exists on GPU nodes only, so it is loaded by
// name at run time and the few functions are declared here as NVIDIA documents them (nvml.h).
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "common/error.h"
#include "launcher/cpu_binding.h"
#include "launcher/gpu_inventory.h"

namespace af {
namespace {

using Device = struct nvmlDevice_st*;
using Result = int;
constexpr Result kSuccess = 0;

struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

class Nvml {
 public:
  bool load() {
    library_ = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library_ == nullptr) return false;
    get(init, "nvmlInit_v2");
    get(error_string, "nvmlErrorString");
    get(device_count, "nvmlDeviceGetCount_v2");
    get(device_by_index, "nvmlDeviceGetHandleByIndex_v2");
    get(uuid, "nvmlDeviceGetUUID");
    get(device_name, "nvmlDeviceGetName");
    get(memory, "nvmlDeviceGetMemoryInfo");
    get(pci_info, "nvmlDeviceGetPciInfo_v3");
    get(driver_version, "nvmlSystemGetDriverVersion");
    get(mig_mode, "nvmlDeviceGetMigMode");  // null with drivers before 450, which have no MIG
    get(mig_slots, "nvmlDeviceGetMaxMigDeviceCount");
    get(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
    get(parent_of_mig, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    // The library is never unloaded: it starts threads of its own in some versions.
    return init != nullptr && device_count != nullptr && device_by_index != nullptr &&
           uuid != nullptr && device_name != nullptr && memory != nullptr &&
           driver_version != nullptr && init() == kSuccess;
  }

  Result (*init)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*device_count)(unsigned int*) = nullptr;
  Result (*device_by_index)(unsigned int, Device*) = nullptr;
  Result (*uuid)(Device, char*, unsigned int) = nullptr;
  Result (*device_name)(Device, char*, unsigned int) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*pci_info)(Device, PciInfo*) = nullptr;
  Result (*driver_version)(char*, unsigned int) = nullptr;
  Result (*mig_mode)(Device, unsigned int*, unsigned int*) = nullptr;
  Result (*mig_slots)(Device, unsigned int*) = nullptr;
  Result (*mig_by_index)(Device, unsigned int, Device*) = nullptr;
  Result (*parent_of_mig)(Device, Device*) = nullptr;

 private:
  template <typename Function>
  void get(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }
  void* library_ = nullptr;
};

// Slurm's own way to make a GRES type of a name: "Tesla T4" -> "tesla_t4". Of a MIG instance,
// "NVIDIA A100-PCIE-40GB MIG 1g.5gb", the profile alone.
std::string type_of(const std::string& name) {
  const size_t mig = name.rfind("MIG ");
  std::string type = mig == std::string::npos ? name : name.substr(mig + 4);
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) {
    return c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  });
  return type;
}

class NvmlGpuSource : public GpuSource {
 public:
  explicit NvmlGpuSource(const Nvml& nvml) : nvml_(nvml) {}
  std::string name() const override { return "nvml"; }

  std::vector<Gpu> all_gpus() override {
    std::vector<Gpu> gpus;
    unsigned int count = 0;
    check(nvml_.device_count(&count), "count the GPUs");
    for (unsigned int i = 0; i < count; ++i) {
      Device card = nullptr;
      check(nvml_.device_by_index(i, &card), "open GPU " + std::to_string(i));
      unsigned int mig_on = 0, pending = 0;
      if (nvml_.mig_mode == nullptr || nvml_.mig_mode(card, &mig_on, &pending) != kSuccess)
        mig_on = 0;
      if (mig_on == 0) {
        gpus.push_back(describe(card, card, static_cast<int>(i)));
        continue;
      }
      unsigned int slots = 0;
      if (nvml_.mig_slots == nullptr || nvml_.mig_by_index == nullptr) continue;
      check(nvml_.mig_slots(card, &slots), "count the MIG instances");
      for (unsigned int slot = 0; slot < slots; ++slot) {
        Device instance = nullptr;  // slots may be empty: instances need not be numbered densely
        if (nvml_.mig_by_index(card, slot, &instance) != kSuccess) continue;
        Device parent = card;
        if (nvml_.parent_of_mig != nullptr) nvml_.parent_of_mig(instance, &parent);
        gpus.push_back(describe(instance, parent, static_cast<int>(i)));
      }
    }
    return gpus;
  }

 private:
  void check(Result result, const std::string& what) const {
    if (result == kSuccess) return;
    throw Error::format("the NVIDIA driver (NVML) cannot {}: {}", what,
                        nvml_.error_string ? nvml_.error_string(result) : "unknown error");
  }

  Gpu describe(Device device, Device card, int index) const {
    Gpu gpu;
    char text[96] = "";  // NVML's own largest: 96 for names, UUIDs and versions
    check(nvml_.uuid(device, text, sizeof(text)), "read a GPU's UUID");
    gpu.uuid = text;
    gpu.index = index;
    gpu.mig = device != card;
    gpu.parent_uuid = gpu.uuid;
    if (gpu.mig && nvml_.uuid(card, text, sizeof(text)) == kSuccess) gpu.parent_uuid = text;
    if (nvml_.device_name(device, text, sizeof(text)) == kSuccess) gpu.type = type_of(text);
    Memory memory{};
    if (nvml_.memory(device, &memory) == kSuccess)
      gpu.memory_gb = static_cast<double>(memory.total) / (1024.0 * 1024.0 * 1024.0);
    if (nvml_.driver_version(text, sizeof(text)) == kSuccess) gpu.driver = text;
    PciInfo pci{};
    if (nvml_.pci_info != nullptr && nvml_.pci_info(card, &pci) == kSuccess)
      gpu.near_cpus = near_cpus(pci.bus_id);
    return gpu;
  }

  // hwloc looks at the whole machine each time, and instances of one card share their place.
  std::vector<int> near_cpus(const std::string& bus_id) const {
    static std::map<std::string, std::vector<int>> known;
    const auto found = known.find(bus_id);
    if (found != known.end()) return found->second;
    return known.emplace(bus_id, cpus_near_pci_device(bus_id)).first->second;
  }

  Nvml nvml_;
};

}  // namespace

std::unique_ptr<GpuSource> nvml_gpu_source() {
  Nvml nvml;
  if (!nvml.load()) return nullptr;
  return std::make_unique<NvmlGpuSource>(nvml);
}

}  // namespace af
