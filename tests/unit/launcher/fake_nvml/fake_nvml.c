/* SPDX-License-Identifier: Apache-2.0
 * FAKE libnvidia-ml.so.1 for nvml_gpus_test.cc: a T4, and an A100 in MIG mode with instances in two
 * of its seven slots. The real one belongs to the driver.
 */
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { kT4 = 1, kA100, kFirstSlice, kSecondSlice };
enum { kSuccess = 0, kNotSupported = 3, kNotFound = 6 };
typedef void* Device;
static long id(Device device) {
  return (long)device;
}

struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

EXPORT int nvmlInit_v2(void) {
  return kSuccess;
}
EXPORT const char* nvmlErrorString(int code) {
  return code == kNotFound ? "Not Found" : "?";
}
EXPORT int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return kSuccess;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  *device = (Device)(long)(index == 0 ? kT4 : kA100);
  return kSuccess;
}
EXPORT int nvmlDeviceGetUUID(Device device, char* text, unsigned int size) {
  static const char* const kUuids[] = {"", "GPU-t4", "GPU-a100", "MIG-first", "MIG-second"};
  snprintf(text, size, "%s", kUuids[id(device)]);
  return kSuccess;
}
EXPORT int nvmlDeviceGetName(Device device, char* text, unsigned int size) {
  snprintf(text, size, "%s",
           id(device) == kT4     ? "Tesla T4"
           : id(device) == kA100 ? "NVIDIA A100-PCIE-40GB"
                                 : "NVIDIA A100-PCIE-40GB MIG 1g.5gb");
  return kSuccess;
}
EXPORT int nvmlDeviceGetMemoryInfo(Device device, struct Memory* memory) {
  memset(memory, 0, sizeof(*memory));
  memory->total = (id(device) == kT4 ? 16ULL : 5ULL) << 30;
  return kSuccess;
}
EXPORT int nvmlDeviceGetPciInfo_v3(Device device, struct PciInfo* info) {
  memset(info, 0, sizeof(*info));
  snprintf(info->bus_id, sizeof(info->bus_id), "0000FFFE:%02lX:00.0", id(device));
  return kSuccess;
}
EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned int size) {
  snprintf(text, size, "535.129.03");
  return kSuccess;
}
EXPORT int nvmlDeviceGetMigMode(Device device, unsigned int* now, unsigned int* pending) {
  *now = *pending = id(device) == kA100;
  return id(device) == kT4 ? kNotSupported : kSuccess;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned int* count) {
  *count = id(device) == kA100 ? 7 : 0;
  return kSuccess;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned int slot, Device* slice) {
  if (id(device) != kA100 || (slot != 1 && slot != 5)) return kNotFound;
  *slice = (Device)(long)(slot == 1 ? kFirstSlice : kSecondSlice);
  return kSuccess;
}
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device slice, Device* device) {
  (void)slice;
  *device = (Device)(long)kA100;
  return kSuccess;
}
