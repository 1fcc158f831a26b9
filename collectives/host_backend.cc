// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace af {
namespace {

class PageMemory : public Memory {
 public:
  explicit PageMemory(std::size_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      throw CommunicatorError(
          CommunicatorError::Kind::system,
          "cannot allocate " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
    }
  }
  ~PageMemory() override { munmap(base_, std::max<std::size_t>(bytes_, 1)); }
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  void* data() const override { return base_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
  void* base_;
};

}  // namespace

HostBackend::HostBackend(const Options& options) : options_(options) {
  if (options.device >= 0) {
    staging_ =
        make_device_staging(options, [this](std::size_t bytes) { return do_allocate(bytes); });
    if (staging_ == nullptr) {
      throw CommunicatorError(CommunicatorError::Kind::system,
                              "device " + std::to_string(options.device) +
                                  " was asked for, but this libaf_collectives was built without "
                                  "CUDA");
    }
  }
  executor_ = std::make_shared<Executor>([this](const Executor::Job& job) {
    if (staging_ == nullptr) return run(job.operation);
    staging_->run(job.operation, job.mark, [this](const Operation& staged) { run(staged); });
  });
}

HostBackend::~HostBackend() = default;

std::vector<std::shared_ptr<WorkState>> HostBackend::submit(std::span<const Operation> operations,
                                                            bool grouped) {
  std::vector<std::shared_ptr<WorkState>> states;
  states.reserve(operations.size());
  if (operations.empty()) executor_->throw_if_broken();
  for (const Operation& operation : operations) {
    const std::size_t bytes = std::max(input_bytes(operation, options_.world_size),
                                       output_bytes(operation, options_.world_size));
    const auto place = grouped                                           ? Executor::Place::progress
                       : operation.blocking || !options_.progress_thread ? Executor::Place::caller
                       : bytes <= kInlineBytes && staging_ == nullptr    ? Executor::Place::either
                                                                      : Executor::Place::progress;
    const auto mark = staging_ == nullptr ? nullptr : staging_->mark(operation.stream);
    states.push_back(executor_->submit({operation, mark}, place));
  }
  return states;
}

std::shared_ptr<Memory> HostBackend::allocate(std::size_t bytes) {
  if (staging_ != nullptr) return staging_->allocate(bytes);
  std::shared_ptr<Memory> memory;
  executor_->exclusively([&] { memory = do_allocate(bytes); });
  return memory;
}

std::shared_ptr<Memory> HostBackend::do_allocate(std::size_t bytes) {
  return std::make_shared<PageMemory>(bytes);
}

void HostBackend::abort(const std::string& reason) noexcept {
  // First what runs, since failing the rest needs a lock that is free only between operations.
  interrupt(reason);
  executor_->fail(CommunicatorError(CommunicatorError::Kind::aborted, reason, {options_.rank}));
}

void HostBackend::stop() noexcept {
  interrupt("the communicator was closed");
  executor_->stop();
}

}  // namespace af
