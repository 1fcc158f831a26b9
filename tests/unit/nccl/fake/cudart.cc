// SPDX-License-Identifier: Apache-2.0
// A libcudart for machines without a GPU: "device" memory is host memory, a stream is a thread that
// works through a queue. Streams and events are asynchronous as the real ones are, so that a
// missing wait shows. The default stream (null) is always idle here.
#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/unit/nccl/fake/hooks.h"

struct CUstream_st {
  CUstream_st() : thread([this] { work(); }) {}
  ~CUstream_st() {
    {
      std::lock_guard lock(mutex);
      ending = true;
      changed.notify_all();
    }
    thread.join();
  }
  void push(std::function<void()> job) {
    std::lock_guard lock(mutex);
    jobs.push_back(std::move(job));
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return jobs.empty() && !busy; });
  }
  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || !jobs.empty(); });
      if (jobs.empty()) return;
      const auto job = std::move(jobs.front());
      jobs.pop_front();
      busy = true;
      lock.unlock();
      job();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool busy = false, ending = false;
  std::thread thread;
};

namespace {

// What an event stands for: the moment of its latest record.
struct Moment {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  void reach() {
    std::lock_guard lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
};

std::atomic<int> device_count{4};
thread_local int current_device = 0;

}  // namespace

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Moment> moment;
};

void fake_cuda_set_devices(int count) {
  device_count = count;
}

void fake_cuda_enqueue(void* stream, std::function<void()> job) {
  if (stream) {
    static_cast<cudaStream_t>(stream)->push(std::move(job));
  } else {
    job();
  }
}

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count;
  return device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*pointer, 0xee, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  std::memset(pointer, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  fake_cuda_enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void*) {
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream) stream->drain();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::shared_ptr<Moment> moment;
  {
    std::lock_guard lock(event->mutex);
    moment = event->moment;
  }
  if (moment) fake_cuda_enqueue(stream, [moment] { moment->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto moment = std::make_shared<Moment>();
  {
    std::lock_guard lock(event->mutex);
    event->moment = moment;
  }
  fake_cuda_enqueue(stream, [moment] { moment->reach(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::shared_ptr<Moment> moment;
  {
    std::lock_guard lock(event->mutex);
    moment = event->moment;
  }
  if (!moment) return cudaSuccess;  // as CUDA: an event never recorded counts as complete
  std::lock_guard lock(moment->mutex);
  return moment->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "fake error";
}

}  // extern "C"
