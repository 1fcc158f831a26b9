// SPDX-License-Identifier: Apache-2.0
// Lets a host backend work on the memory of a CUDA device: copy to pinned host memory, run the
// operation there, copy the result back. The way for GPUs that NCCL cannot join (several MIG
// instances of one card). Not yet run on hardware.
//
// HostBackend uses it when Options::device >= 0: mark() at submission, run() instead of its own.
#pragma once

#include <functional>
#include <memory>

#include "collectives/backend.h"

namespace af {

class DeviceStaging {
 public:
  using Run = std::function<void(const Operation&)>;
  // Memory of the backend itself, in which it works without a copy; collective like do_allocate().
  // All ranks stage the same sizes in the same order, so its calls match.
  using Allocate = std::function<std::shared_ptr<Memory>(std::size_t bytes)>;

  virtual ~DeviceStaging() = default;

  // Remembers how far `stream` is now: run() copies after that point. From any thread.
  virtual std::shared_ptr<void> mark(Stream stream) = 0;
  // Executes one operation on device memory; the result is on the device when it returns. `run`
  // gets the same operation on host memory, always in place. Throws CommunicatorError.
  virtual void run(const Operation& operation, const std::shared_ptr<void>& mark,
                   const Run& run) = 0;
  // Memory of the device, zeroed.
  virtual std::shared_ptr<Memory> allocate(std::size_t bytes) = 0;
};

// Throws CommunicatorError (system) if the device cannot be used; returns null when af was built
// without CUDA.
std::unique_ptr<DeviceStaging> make_device_staging(const Options& options,
                                                   DeviceStaging::Allocate allocate);

}  // namespace af
