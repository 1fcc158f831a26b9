// SPDX-License-Identifier: Apache-2.0
// What a stage of a pipeline does in a step, in which order: a pure function.
#pragma once

#include <vector>

#include "af/train/pipeline.h"

namespace af::train {

struct StageOperation {
  enum class Pass { forward, backward };
  Pass pass = Pass::forward;
  int micro_batch = 0;
  bool operator==(const StageOperation&) const = default;
};

// In the order in which the stage does them; it waits before each for what it needs: forward for
// the stage before, backward for the stage behind.
//
// one_forward_one_backward: forward of as many micro-batches as there are stages from this one on,
// then backward and forward in turn, then what is left of backward. So a stage never holds the
// activations of more micro-batches than that.
//
// Backward is in the order of the micro-batches in both schedules, so that gradients are summed in
// the same order and are equal bit for bit.
std::vector<StageOperation> operations_of_stage(PipelineSchedule schedule, int stage, int stages,
                                                int micro_batches);

}  // namespace af::train
