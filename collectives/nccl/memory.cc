// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/memory.h"

#include "collectives/cuda/runtime.h"
#include "collectives/nccl/library.h"

namespace af::nccl {
namespace {

class NcclMemory final : public Memory {
 public:
  NcclMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
    cuda::DeviceGuard guard(device_);
    // ncclMemAlloc may not be supported (no cuMem API in the driver): that is no failure.
    nccls_ = library().mem_alloc && library().mem_free &&
             library().mem_alloc(&data_, bytes) == ncclSuccess;
    if (!nccls_) AF_CUDA(malloc(&data_, bytes));
    try {
      AF_CUDA(memset(data_, 0, bytes));
      AF_CUDA(stream_synchronize(nullptr));  // memset may be asynchronous to the host
    } catch (...) {
      release();
      throw;
    }
  }
  ~NcclMemory() override {
    try {
      cuda::DeviceGuard guard(device_);
      release();
    } catch (...) {  // NOLINT(bugprone-empty-catch): at exit the driver may be gone
    }
  }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  void release() noexcept {
    if (nccls_) {
      (void)library().mem_free(data_);
    } else {
      (void)cuda::runtime().free(data_);
    }
  }

  int device_;
  std::size_t bytes_;
  void* data_ = nullptr;
  bool nccls_ = false;
};

}  // namespace

std::shared_ptr<Memory> make_device_memory(int device, std::size_t bytes) {
  return std::make_shared<NcclMemory>(device, bytes);
}

}  // namespace af::nccl
