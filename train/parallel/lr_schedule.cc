// SPDX-License-Identifier: Apache-2.0
#include "af/train/lr_schedule.h"

#include <ATen/Functions.h>

#include <cmath>
#include <utility>

#include <fmt/ranges.h>

#include "af/train/checkpoint.h"
#include "common/error.h"

namespace af::train {
namespace {

constexpr double kPi = 3.14159265358979323846;

}  // namespace

LrFunction constant_lr() {
  return {"constant", [](int64_t) { return 1.0; }};
}

LrFunction warmup_cosine(const WarmupCosine& options) {
  if (options.warmup_steps < 0 || options.total_steps <= options.warmup_steps)
    throw Error::format("warmup_cosine: {} steps of warm-up out of {}: there must be more in all",
                        options.warmup_steps, options.total_steps);
  if (!(options.end_factor >= 0))
    throw Error::format("warmup_cosine: end_factor={} is negative", options.end_factor);
  std::string description =
      fmt::format("linear warm-up over {} steps, then a cosine to {} of the rate at step {}",
                  options.warmup_steps, options.end_factor, options.total_steps);
  return {std::move(description), [options](int64_t completed) {
            if (completed < options.warmup_steps)
              return static_cast<double>(completed + 1) / static_cast<double>(options.warmup_steps);
            if (completed >= options.total_steps) return options.end_factor;
            const double part = static_cast<double>(completed - options.warmup_steps) /
                                static_cast<double>(options.total_steps - options.warmup_steps);
            const double height = (1 + std::cos(kPi * part)) / 2;
            return options.end_factor + (1 - options.end_factor) * height;
          }};
}

LrFunction step_lr(int64_t steps, double gamma) {
  if (steps < 1) throw Error::format("step_lr: every {} steps: at least 1", steps);
  if (!(gamma >= 0)) throw Error::format("step_lr: gamma={} is negative", gamma);
  return {fmt::format("times {} every {} steps", gamma, steps), [steps, gamma](int64_t completed) {
            const int64_t times = completed / steps;
            return std::pow(gamma, static_cast<double>(times));
          }};
}

LrFunction lr_function(std::string description, std::function<double(int64_t completed)> factor) {
  if (!factor) throw Error("lr_function: no function is given");
  return {std::move(description), std::move(factor)};
}

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer, LrFunction function)
    : optimizer_(optimizer), function_(std::move(function)), base_(rates()) {
  set(0);
}

void LrSchedule::set(int64_t completed) {
  const double factor = function_.factor(completed);
  if (!(factor >= 0) || !std::isfinite(factor))
    throw Error::format("the learning-rate schedule ({}) gives a factor of {} behind {} steps",
                        function_.description, factor, completed);
  auto& groups = optimizer_.param_groups();
  if (groups.size() != base_.size())
    throw Error::format(
        "the optimizer has {} parameter groups and had {} when its learning-rate "
        "schedule was made: add groups before",
        groups.size(), base_.size());
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(base_[i] * factor);
  completed_ = completed;
}

double LrSchedule::lr() const {
  return optimizer_.param_groups().front().options().get_lr();
}

std::vector<double> LrSchedule::rates() const {
  std::vector<double> all;
  for (const auto& group : optimizer_.param_groups()) all.push_back(group.options().get_lr());
  return all;
}

State LrSchedule::state() const {
  const auto numbers = [](const std::vector<double>& values) {
    return at::tensor(values, at::TensorOptions(at::kDouble));
  };
  State state = make_state();
  state.insert("step", completed_);
  state.insert("description", function_.description);
  state.insert("base_lrs", numbers(base_));
  state.insert("lrs", numbers(rates()));
  return state;
}

void LrSchedule::load(const State& state) {
  const auto step = state.find("step");
  const auto description = state.find("description");
  const auto base = state.find("base_lrs");
  if (step == state.end() || !step->value().isInt() || description == state.end() ||
      !description->value().isString() || base == state.end() || !base->value().isTensor())
    throw Error("the state is not that of a learning-rate schedule: step, description, base_lrs");
  const at::Tensor saved = base->value().toTensor().to(at::kCPU, at::kDouble).contiguous();
  const std::vector<double> before(saved.data_ptr<double>(),
                                   saved.data_ptr<double>() + saved.numel());
  if (description->value().toStringRef() != function_.description || before != base_)
    warn_on_stderr(fmt::format(
        "the checkpoint's learning rate was {} times {}; the program's now is {} times {}",
        description->value().toStringRef(), fmt::join(before, ", "), function_.description,
        fmt::join(base_, ", ")));
  set(step->value().toInt());
}

}  // namespace af::train
