// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime, loaded when it is first needed: the library also works on machines without it.
//
// Calls go through the table, checked: AF_CUDA(stream_synchronize(stream)).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "af/communicator.h"

namespace af::cuda {

// Signatures are written out, because cuda_runtime.h (which nccl.h includes) overloads some names
// with templates; runtime.cc compares them with CUDA's declarations.
struct Runtime {
  cudaError_t (*get_device_count)(int*);
  cudaError_t (*get_device)(int*);
  cudaError_t (*set_device)(int);
  cudaError_t (*malloc)(void**, std::size_t);
  cudaError_t (*free)(void*);
  cudaError_t (*memset)(void*, int, std::size_t);
  cudaError_t (*memcpy)(void*, const void*, std::size_t, cudaMemcpyKind);
  cudaError_t (*memcpy_async)(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t);
  cudaError_t (*host_register)(void*, std::size_t, unsigned);
  cudaError_t (*host_unregister)(void*);
  cudaError_t (*stream_create_with_flags)(cudaStream_t*, unsigned);
  cudaError_t (*stream_destroy)(cudaStream_t);
  cudaError_t (*stream_synchronize)(cudaStream_t);
  cudaError_t (*stream_wait_event)(cudaStream_t, cudaEvent_t, unsigned);
  cudaError_t (*event_create_with_flags)(cudaEvent_t*, unsigned);
  cudaError_t (*event_destroy)(cudaEvent_t);
  cudaError_t (*event_record)(cudaEvent_t, cudaStream_t);
  cudaError_t (*event_query)(cudaEvent_t);
  cudaError_t (*get_last_error)();
  const char* (*get_error_string)(cudaError_t);
};

// Throws CommunicatorError (system) if there is no libcudart.
const Runtime& runtime();

// Throws CommunicatorError (system) in one line that says what to do, unless `device` can be used.
void require_device(int device, const char* backend);

// Throws CommunicatorError (system) unless `code` is cudaSuccess.
void check(cudaError_t code, const char* call, const char* file, int line);
#define AF_CUDA(call) \
  ::af::cuda::check(::af::cuda::runtime().call, "cuda " #call, __FILE__, __LINE__)

// Makes `device` current on this thread, and what was before again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// An event without timing, destroyed with its last owner.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream);
  bool reached() const;  // throws for a failure of an earlier kernel
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace af::cuda
