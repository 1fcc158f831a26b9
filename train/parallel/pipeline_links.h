// SPDX-License-Identifier: Apache-2.0
// What the stages of a pipeline hand to each other in a step, and how they all learn that one of
// them has failed.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "af/train/pipeline.h"

namespace af::train {

// Thread-safe. One for each step.
class PipelineLinks {
 public:
  PipelineLinks(int stages, int micro_batches);

  // Another stage has failed: the work of this step is pointless. Never seen by a caller.
  struct Ended {};

  // From `stage` to the next one; taken once, by that one. take_…() blocks until it is there, and
  // throws Ended if a stage has failed.
  void put_outputs(int stage, int micro_batch, Tensors outputs);
  Tensors take_outputs(int stage, int micro_batch);
  // Of the outputs of `stage`, from the next one; undefined where there is none.
  void put_gradients(int stage, int micro_batch, Tensors gradients);
  Tensors take_gradients(int stage, int micro_batch);

  // The first failure counts.
  void fail(std::exception_ptr error);
  // Between the operations of a stage. Throws Ended.
  void check();
  // Behind the end of all stages: throws the failure, if there was one.
  void rethrow();

 private:
  using Slots = std::vector<std::optional<Tensors>>;
  void put(Slots& slots, int stage, int micro_batch, Tensors tensors);
  Tensors take(Slots& slots, int stage, int micro_batch);

  const int micro_batches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Slots outputs_;  // by stage and micro-batch
  Slots gradients_;
  std::exception_ptr failure_;
};

}  // namespace af::train
