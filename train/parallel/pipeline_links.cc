// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/pipeline_links.h"

#include <utility>

namespace af::train {

PipelineLinks::PipelineLinks(int stages, int micro_batches)
    : micro_batches_(micro_batches),
      outputs_(static_cast<std::size_t>(stages) * static_cast<std::size_t>(micro_batches)),
      gradients_(outputs_.size()) {}

void PipelineLinks::put_outputs(int stage, int micro_batch, Tensors outputs) {
  put(outputs_, stage, micro_batch, std::move(outputs));
}

Tensors PipelineLinks::take_outputs(int stage, int micro_batch) {
  return take(outputs_, stage, micro_batch);
}

void PipelineLinks::put_gradients(int stage, int micro_batch, Tensors gradients) {
  put(gradients_, stage, micro_batch, std::move(gradients));
}

Tensors PipelineLinks::take_gradients(int stage, int micro_batch) {
  return take(gradients_, stage, micro_batch);
}

void PipelineLinks::put(Slots& slots, int stage, int micro_batch, Tensors tensors) {
  const std::lock_guard lock(mutex_);
  slots[static_cast<std::size_t>(stage * micro_batches_ + micro_batch)] = std::move(tensors);
  changed_.notify_all();
}

Tensors PipelineLinks::take(Slots& slots, int stage, int micro_batch) {
  std::unique_lock lock(mutex_);
  auto& slot = slots[static_cast<std::size_t>(stage * micro_batches_ + micro_batch)];
  changed_.wait(lock, [&] { return slot.has_value() || failure_; });
  if (failure_) throw Ended();
  Tensors tensors = std::move(*slot);
  slot.reset();
  return tensors;
}

void PipelineLinks::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  changed_.notify_all();
}

void PipelineLinks::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Ended();
}

void PipelineLinks::rethrow() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace af::train
