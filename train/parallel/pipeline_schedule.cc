// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/pipeline_schedule.h"

#include <algorithm>

namespace af::train {

std::vector<StageOperation> operations_of_stage(PipelineSchedule schedule, int stage, int stages,
                                                int micro_batches) {
  using Pass = StageOperation::Pass;
  const int ahead =
      schedule == PipelineSchedule::gpipe ? micro_batches : std::min(micro_batches, stages - stage);
  std::vector<StageOperation> operations;
  for (int i = 0; i < ahead; ++i) operations.push_back({Pass::forward, i});
  for (int i = 0; i < micro_batches; ++i) {
    operations.push_back({Pass::backward, i});
    if (ahead + i < micro_batches) operations.push_back({Pass::forward, ahead + i});
  }
  return operations;
}

}  // namespace af::train
