// SPDX-License-Identifier: Apache-2.0
// The part of one stage in one step of a pipeline.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <vector>

#include "af/train/pipeline.h"
#include "train/parallel/pipeline_links.h"
#include "train/parallel/pipeline_schedule.h"

namespace af::train {

// What all stages know of a step. Read-only while they run, but for the links and the results, of
// which each has one writer.
struct PipelineStep {
  std::vector<Tensors> inputs;   // by micro-batch
  std::vector<Tensors> targets;  // likewise; empty without a loss
  std::vector<double> weights;   // of each micro-batch: its share of the rows
  Pipeline::Loss loss;           // none: outputs are wanted
  bool backward = false;
  bool random = false;  // seeded for each micro-batch
  uint64_t seed = 0;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int stages = 0;
  PipelineLinks links;

  // The last stage's.
  at::Tensor mean_loss;
  std::vector<Tensors> outputs;  // by micro-batch
};

class StageRun {
 public:
  StageRun(const PipelineStage& stage, int number, at::Generator& generator, PipelineStep& step);

  // In the stage's thread. Never throws: a failure goes to the links.
  void run() noexcept;

 private:
  // What backward needs of a micro-batch.
  struct Held {
    Tensors inputs;   // as they came from the stage before: leaves, on that one's device
    Tensors outputs;  // or the weighted loss
  };
  bool first() const { return number_ == 0; }
  bool last() const { return number_ + 1 == step_.stages; }
  void forward(int micro_batch);
  void backward(int micro_batch);
  Tensors receive(int micro_batch);
  Tensors compute(int micro_batch, const Tensors& inputs);
  at::Tensor weighted_loss(int micro_batch, const Tensors& outputs);
  std::exception_ptr named(const StageOperation& operation, std::exception_ptr error) const;

  const PipelineStage& stage_;
  const int number_;
  at::Generator& generator_;
  PipelineStep& step_;
  std::vector<Held> held_;
};

}  // namespace af::train
