// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace af::train {
namespace {

using Pass = StageOperation::Pass;

std::string text(const std::vector<StageOperation>& operations) {
  std::string text;
  for (const StageOperation& operation : operations)
    text += (operation.pass == Pass::forward ? " F" : " B") + std::to_string(operation.micro_batch);
  return text.empty() ? text : text.substr(1);
}

TEST(PipelineSchedule, OrderOfEachStage) {
  const struct {
    PipelineSchedule schedule;
    int stage, stages, micro_batches;
    const char* order;
  } cases[] = {
      {PipelineSchedule::one_forward_one_backward, 0, 2, 4, "F0 F1 B0 F2 B1 F3 B2 B3"},
      {PipelineSchedule::one_forward_one_backward, 1, 2, 4, "F0 B0 F1 B1 F2 B2 F3 B3"},
      {PipelineSchedule::one_forward_one_backward, 0, 3, 4, "F0 F1 F2 B0 F3 B1 B2 B3"},
      {PipelineSchedule::one_forward_one_backward, 0, 4, 2, "F0 F1 B0 B1"},
      {PipelineSchedule::one_forward_one_backward, 0, 1, 2, "F0 B0 F1 B1"},
      {PipelineSchedule::gpipe, 0, 2, 3, "F0 F1 F2 B0 B1 B2"},
      {PipelineSchedule::gpipe, 1, 2, 3, "F0 F1 F2 B0 B1 B2"},
      {PipelineSchedule::gpipe, 0, 2, 1, "F0 B0"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(text(operations_of_stage(c.schedule, c.stage, c.stages, c.micro_batches)), c.order)
        << c.stage << " of " << c.stages << ", " << c.micro_batches << " micro-batches";
}

// Runs the stages by the rules of the real ones, an operation taking a unit of time, and returns
// how many units a step takes. Fails where a stage would wait for ever.
struct Outcome {
  int units = 0;
  int most_held = 0;  // micro-batches of the first stage between forward and backward
};

Outcome play(PipelineSchedule schedule, int stages, int micro_batches) {
  std::vector<std::vector<StageOperation>> orders;
  for (int s = 0; s < stages; ++s)
    orders.push_back(operations_of_stage(schedule, s, stages, micro_batches));
  std::vector<std::vector<bool>> forward(stages, std::vector<bool>(micro_batches));
  std::vector<std::vector<bool>> backward = forward;
  std::vector<std::size_t> next(stages);
  Outcome outcome;
  int held = 0;
  while (std::any_of(next.begin(), next.end(), [&](std::size_t n) {
    return n < 2 * static_cast<std::size_t>(micro_batches);
  })) {
    std::vector<std::pair<int, StageOperation>> done;
    for (int s = 0; s < stages; ++s) {
      if (next[s] == orders[s].size()) continue;
      const StageOperation& operation = orders[s][next[s]];
      const int m = operation.micro_batch;
      if (operation.pass == Pass::forward
              ? s == 0 || forward[s - 1][m]
              : forward[s][m] && (s == stages - 1 || backward[s + 1][m]))
        done.emplace_back(s, operation);
    }
    if (done.empty()) {
      ADD_FAILURE() << "all wait, with " << stages << " stages and " << micro_batches;
      return outcome;
    }
    for (const auto& [s, operation] : done) {
      auto& passed = (operation.pass == Pass::forward ? forward : backward)[s];
      EXPECT_FALSE(passed[operation.micro_batch]) << "twice";
      passed[operation.micro_batch] = true;
      ++next[s];
      if (s == 0) held += operation.pass == Pass::forward ? 1 : -1;
    }
    outcome.most_held = std::max(outcome.most_held, held);
    ++outcome.units;
  }
  return outcome;
}

TEST(PipelineSchedule, EveryStageComesToItsEndAndBothSchedulesTakeAsLong) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
      const Outcome one = play(PipelineSchedule::one_forward_one_backward, stages, micro_batches);
      const Outcome all = play(PipelineSchedule::gpipe, stages, micro_batches);
      EXPECT_EQ(one.units, 2 * (micro_batches + stages - 1));
      EXPECT_EQ(all.units, 2 * (micro_batches + stages - 1));
      EXPECT_EQ(one.most_held, std::min(stages, micro_batches));
      EXPECT_EQ(all.most_held, micro_batches);
    }
}

}  // namespace
}  // namespace af::train
