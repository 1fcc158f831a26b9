// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/runtime.h"

#include <dlfcn.h>

#include <type_traits>

namespace af::cuda {
namespace {

using Kind = CommunicatorError::Kind;

void* open_library() {
  // The runtime that the program has loaded already comes first: two copies work, but each costs
  // memory on the device. Then the one that af was built with, then any.
  const std::string built_with = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  const std::string candidates[] = {built_with, "libcudart.so.13", "libcudart.so.12",
                                    "libcudart.so.11.0", "libcudart.so"};
  for (const auto& name : candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return handle;
  }
  for (const auto& name : candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW)) return handle;
  }
  throw CommunicatorError(Kind::system,
                          "cannot load " + built_with +
                              " (the CUDA runtime): install it or add its directory to "
                              "LD_LIBRARY_PATH; without a GPU use backend local");
}

template <typename Function>
void load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw CommunicatorError(Kind::system, std::string("libcudart has no ") + name);
}

Runtime load_all() {
  Runtime r{};
  void* library = open_library();
#define AF_LOAD(member, name)                                           \
  static_assert(std::is_same_v<decltype(r.member), decltype(&(name))>); \
  load(library, #name, r.member)
  AF_LOAD(get_device_count, cudaGetDeviceCount);
  AF_LOAD(get_device, cudaGetDevice);
  AF_LOAD(set_device, cudaSetDevice);
  AF_LOAD(malloc, cudaMalloc);
  AF_LOAD(free, cudaFree);
  AF_LOAD(memset, cudaMemset);
  AF_LOAD(memcpy, cudaMemcpy);
  AF_LOAD(memcpy_async, cudaMemcpyAsync);
  AF_LOAD(host_register, cudaHostRegister);
  AF_LOAD(host_unregister, cudaHostUnregister);
  AF_LOAD(stream_create_with_flags, cudaStreamCreateWithFlags);
  AF_LOAD(stream_destroy, cudaStreamDestroy);
  AF_LOAD(stream_synchronize, cudaStreamSynchronize);
  AF_LOAD(stream_wait_event, cudaStreamWaitEvent);
  AF_LOAD(event_create_with_flags, cudaEventCreateWithFlags);
  AF_LOAD(event_destroy, cudaEventDestroy);
  AF_LOAD(event_record, cudaEventRecord);
  AF_LOAD(event_query, cudaEventQuery);
  AF_LOAD(get_last_error, cudaGetLastError);
  AF_LOAD(get_error_string, cudaGetErrorString);
#undef AF_LOAD
  return r;
}

}  // namespace

const Runtime& runtime() {
  static const Runtime loaded = load_all();
  return loaded;
}

void check(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  // Also takes the error off the thread, where the program's next unrelated call would find it.
  (void)runtime().get_last_error();
  throw CommunicatorError(Kind::system, std::string(call) + ": " +
                                            runtime().get_error_string(code) + " (" + file + ":" +
                                            std::to_string(line) + ")");
}

void require_device(int device, const char* backend) {
  if (device < 0) {
    throw CommunicatorError(Kind::invalid_argument,
                            std::string("the ") + backend +
                                " backend works on the memory of a GPU, but no device was named; "
                                "for host memory use backend local");
  }
  int count = 0;
  const cudaError_t code = runtime().get_device_count(&count);
  if (code != cudaSuccess || count == 0) {
    (void)runtime().get_last_error();
    throw CommunicatorError(
        Kind::system,
        std::string("the ") + backend + " backend was asked for device " + std::to_string(device) +
            ", but CUDA sees no GPU here" +
            (code == cudaSuccess ? std::string()
                                 : std::string(": ") + runtime().get_error_string(code)) +
            "; ask for a GPU, or use backend local with host memory");
  }
  if (device >= count) {
    throw CommunicatorError(Kind::invalid_argument,
                            std::string("the ") + backend + " backend was asked for device " +
                                std::to_string(device) + "; CUDA sees " + std::to_string(count) +
                                " here, numbered from 0 (CUDA_VISIBLE_DEVICES decides which)");
  }
}

DeviceGuard::DeviceGuard(int device) {
  AF_CUDA(get_device(&before_));
  if (before_ != device) AF_CUDA(set_device(device));
}

DeviceGuard::~DeviceGuard() {
  (void)runtime().set_device(before_);
}

Event::Event() {
  AF_CUDA(event_create_with_flags(&event_, cudaEventDisableTiming));
}

Event::~Event() {
  (void)runtime().event_destroy(event_);
}

void Event::record(cudaStream_t stream) {
  AF_CUDA(event_record(event_, stream));
}

bool Event::reached() const {
  const cudaError_t code = runtime().event_query(event_);
  if (code == cudaErrorNotReady) {
    // "Not ready" also counts as the thread's last error, which the program's next check would
    // find.
    (void)runtime().get_last_error();
    return false;
  }
  check(code, "cuda event_query", __FILE__, __LINE__);
  return true;
}

}  // namespace af::cuda
