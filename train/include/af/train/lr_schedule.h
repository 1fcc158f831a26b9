// SPDX-License-Identifier: Apache-2.0
// Learning rates by the number of the step.
//
//   af::train::LrSchedule schedule(adam, af::train::warmup_cosine({.warmup_steps = 500,
//                                                                  .total_steps = 20'000}));
//   ...
//   while (const auto rows = replicas.next(epoch)) {
//     schedule.set(replicas.steps());
//     ...
//     replicas.step(rows->size(), loss, adam);
//   }
//
// A schedule is a function of the number of steps completed, and nothing else: after a resume, at
// any world size, and on a rank that came or was given the state of another, the next rate is the
// same. It multiplies the rate with which each parameter group was made, so groups with rates of
// their own keep the proportion. For libtorch's optimizers and the flat ones.
//
// Use from one thread.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "af/export.h"
#include "af/train/state_file.h"

namespace af::train {

// The factor of the rate for the step behind `completed` ones, from 0 on, and how to call it.
struct LrFunction {
  std::string description;
  std::function<double(int64_t completed)> factor;
};

AF_PUBLIC LrFunction constant_lr();

struct WarmupCosine {
  int64_t warmup_steps = 0;  // the factor rises from 1/warmup_steps to 1 in so many steps, …
  int64_t total_steps = 0;   // … and falls along half a cosine to `end_factor` at this one,
  double end_factor = 0;     // where it stays
};
AF_PUBLIC LrFunction warmup_cosine(const WarmupCosine& options);

// Times `gamma` after every `steps` steps.
AF_PUBLIC LrFunction step_lr(int64_t steps, double gamma = 0.1);

// A function of the program's own; `description` goes into checkpoints.
AF_PUBLIC LrFunction lr_function(std::string description,
                                 std::function<double(int64_t completed)> factor);

class AF_PUBLIC LrSchedule {
 public:
  // The rates that the optimizer has now are those that are multiplied. It must outlive this.
  LrSchedule(torch::optim::Optimizer& optimizer, LrFunction function);

  // Before the step behind `completed` ones. Throws af::Error for a factor that is negative or not
  // a number.
  void set(int64_t completed);

  // Of the first group, as it was set last.
  double lr() const;

  // {"step", "description", "base_lrs", "lrs"}. What is loaded tells where the training stands; the
  // function and its base rates are the program's. Where the checkpoint was written with others,
  // that is said in a line on stderr: a change in the middle of a training should be meant.
  State state() const;
  void load(const State& state);

 private:
  std::vector<double> rates() const;

  torch::optim::Optimizer& optimizer_;
  LrFunction function_;
  std::vector<double> base_;
  int64_t completed_ = 0;
};

}  // namespace af::train
