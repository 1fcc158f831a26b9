// SPDX-License-Identifier: Apache-2.0
// Staging of device memory through pinned host memory (device_staging.h). Not yet run on hardware.
#include <algorithm>
#include <mutex>

#include "collectives/cuda/runtime.h"
#include "collectives/device_staging.h"

namespace af {
namespace {

class DeviceMemory final : public Memory {
 public:
  DeviceMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
    cuda::DeviceGuard guard(device_);
    AF_CUDA(malloc(&data_, bytes));
    try {
      AF_CUDA(memset(data_, 0, bytes));
      AF_CUDA(stream_synchronize(nullptr));
    } catch (...) {
      (void)cuda::runtime().free(data_);
      throw;
    }
  }
  ~DeviceMemory() override {
    try {
      cuda::DeviceGuard guard(device_);
      (void)cuda::runtime().free(data_);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the driver is going down at exit
    }
  }
  void* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  int device_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

// The backend's memory, pinned as long as this lives: copies from pageable memory are several times
// slower and block the host.
class Pinned {
 public:
  explicit Pinned(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {
    AF_CUDA(host_register(memory_->data(), memory_->bytes(), cudaHostRegisterPortable));
  }
  ~Pinned() { (void)cuda::runtime().host_unregister(memory_->data()); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  char* data() const { return static_cast<char*>(memory_->data()); }
  std::size_t bytes() const { return memory_->bytes(); }

 private:
  std::shared_ptr<Memory> memory_;
};

class Staging final : public DeviceStaging {
 public:
  Staging(const Options& options, Allocate allocate)
      : device_(options.device),
        rank_(static_cast<std::size_t>(options.rank)),
        world_(options.world_size),
        allocate_(std::move(allocate)) {
    cuda::require_device(device_, name_of(options.backend));
    cuda::DeviceGuard guard(device_);
    // Non-blocking: else the copies would wait for everything on the default stream.
    AF_CUDA(stream_create_with_flags(&stream_, cudaStreamNonBlocking));
  }

  ~Staging() override {
    if (stream_) (void)cuda::runtime().stream_destroy(stream_);
  }

  std::shared_ptr<void> mark(Stream stream) override {
    cuda::DeviceGuard guard(device_);
    auto event = std::make_shared<cuda::Event>();
    event->record(static_cast<cudaStream_t>(stream));
    return event;
  }

  void run(const Operation& operation, const std::shared_ptr<void>& mark, const Run& run) override {
    cuda::DeviceGuard guard(device_);
    if (mark) {
      const auto event = std::static_pointer_cast<cuda::Event>(mark);
      AF_CUDA(stream_wait_event(stream_, event->get(), 0));
    }
    if (operation.kind == OperationKind::barrier) {
      AF_CUDA(stream_synchronize(stream_));
      return run(operation);
    }
    const std::size_t in = input_bytes(operation, world_), out = output_bytes(operation, world_);
    char* host = room_for(std::max(in, out));
    // In place: an all-gather's input and a reduce-scatter's result are this rank's part.
    const bool gathers = operation.kind == OperationKind::all_gather;
    const bool scatters = operation.kind == OperationKind::reduce_scatter;
    char* host_in = host + (gathers ? rank_ * in : 0);
    char* host_out = host + (scatters ? rank_ * out : 0);
    const bool reads =
        operation.kind != OperationKind::broadcast || operation.root == static_cast<int>(rank_);
    if (reads) {
      AF_CUDA(memcpy_async(host_in, operation.in, in, cudaMemcpyDeviceToHost, stream_));
    }
    AF_CUDA(stream_synchronize(stream_));
    Operation staged = operation;
    staged.in = host_in;
    staged.out = host_out;
    run(staged);
    AF_CUDA(memcpy_async(operation.out, host_out, out, cudaMemcpyHostToDevice, stream_));
    AF_CUDA(stream_synchronize(stream_));
  }

  std::shared_ptr<Memory> allocate(std::size_t bytes) override {
    return std::make_shared<DeviceMemory>(device_, bytes);
  }

 private:
  // Grows by doubling, in step with the other ranks, whose operations have the same sizes.
  char* room_for(std::size_t bytes) {
    if (!pinned_ || pinned_->bytes() < bytes) {
      const std::size_t at_least = pinned_ ? 2 * pinned_->bytes() : std::size_t{1} << 20;
      pinned_.reset();
      pinned_ = std::make_unique<Pinned>(allocate_(std::max(bytes, at_least)));
    }
    return pinned_->data();
  }

  const int device_;
  const std::size_t rank_;
  const int world_;
  Allocate allocate_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Pinned> pinned_;
};

}  // namespace

std::unique_ptr<DeviceStaging> make_device_staging(const Options& options,
                                                   DeviceStaging::Allocate allocate) {
  return std::make_unique<Staging>(options, std::move(allocate));
}

}  // namespace af
