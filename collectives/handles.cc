// SPDX-License-Identifier: Apache-2.0
// Work and Buffer: thin, copyable fronts of what the backend made.
#include "collectives/backend.h"

namespace af {

Work::Work() = default;
Work::Work(std::shared_ptr<WorkState> state, std::uint64_t generation)
    : state_(std::move(state)), generation_(generation) {}
Work::Work(const Work&) = default;
Work& Work::operator=(const Work&) = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

bool Work::done() const {
  return state_ == nullptr || state_->done();
}
void Work::wait(Stream stream) const {
  if (state_ != nullptr) state_->wait(stream);
}
void Work::synchronize() const {
  if (state_ != nullptr) state_->synchronize();
}

Buffer::Buffer() = default;
Buffer::Buffer(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
Buffer::Buffer(const Buffer&) = default;
Buffer& Buffer::operator=(const Buffer&) = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;
Buffer::~Buffer() = default;

void* Buffer::data() const {
  return memory_ == nullptr ? nullptr : memory_->data();
}
std::size_t Buffer::bytes() const {
  return memory_ == nullptr ? 0 : memory_->bytes();
}

}  // namespace af
