// SPDX-License-Identifier: Apache-2.0
// The backward pass of a sharded model: gradients are reduced into the shards' owners.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "af/train/trace.h"
#include "common/error.h"
#include "train/parallel/fsdp_agreement.h"
#include "train/parallel/fsdp_runtime.h"
#include "train/parallel/fsdp_stream.h"

namespace af::train {

FsdpRuntime::Result FsdpRuntime::backward(const at::Tensor& loss, int64_t samples, Part part) {
  if (in_backward_) throw Error("backward() of a sharded model within its backward()");
  if (roots_running_ > 0 || !running_.empty())
    throw Error("backward() of a sharded model within forward() or a unit: call it behind them");
  part_ = part;
  begin_step_part(loss, samples);
  in_backward_ = true;
  try {
    loss.backward();
    end_backward();
  } catch (...) {
    step_begun_ = false;
    forget_reductions();
    leave_backward();
    throw;
  }
  leave_backward();
  return {static_cast<int64_t>(samples_), samples_ > 0 ? loss_sum_ / samples_ : 0};
}

void FsdpRuntime::begin_step_part(const at::Tensor& loss, int64_t samples) {
  if (!step_begun_) {
    samples_ = loss_sum_ = 0;
    sums_kept_ = false;
    for (FsdpUnit& unit : units_)
      for (UnitGroup& group : unit.groups()) group.has_gradient = false;
  }
  step_begun_ = part_ == Part::more_to_come;
  const double value = samples > 0 ? loss.item<double>() : 0;
  const auto all = gather_numbers(world_, {samples, std::bit_cast<int64_t>(value)}, device_);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r][0] < 0)
      throw Error::format("rank {} calls backward() with {} samples", r, all[r][0]);
    samples_ += static_cast<double>(all[r][0]);
    loss_sum_ += static_cast<double>(all[r][0]) * std::bit_cast<double>(all[r][1]);
  }
  own_samples_ = samples;
  if (part_ == Part::more_to_come && options_.accumulate == FullyShardedOptions::Accumulate::whole)
    sums_kept_ = true;
  const double counted = sums_kept_ ? 1 : static_cast<double>(samples);
  weight_ = samples_ > 0 ? counted / samples_ : 0;
}

void FsdpRuntime::before_backward(int unit) {
  if (!in_backward_)
    throw Error("call backward(loss, samples) of FullyShardedDataParallel, not loss.backward()");
  if (unit == current_) return;
  if (current_ >= 0) {
    const FsdpUnit& before = unit_at(current_);
    // Autograd runs what was recorded last first, so the unit before is through, unless this one
    // lies within it, or it ran earlier, too, and has gradients still to come.
    if (!before.encloses && !before.dirty) slots_.unpin(current_);
  }
  current_ = unit;
  make_whole(unit);
  slots_.pin(unit);
  gather_ahead(training_order_.next_after(unit));
}

void FsdpRuntime::on_gradient(std::size_t index) {
  const HookedParameter& hooked = hooked_[index];
  FsdpUnit& unit = unit_at(hooked.unit);
  UnitParameter& one = unit.groups()[hooked.group].parameters[hooked.parameter];
  if (!in_backward_)
    throw Error("call backward(loss, samples) of FullyShardedDataParallel, not loss.backward()");
  if (at::GradMode::is_enabled())
    throw Error("a sharded model has no second derivatives: call backward without create_graph");
  if (unit.memory() == nullptr || one.arrived)
    throw Error::format(
        "parameter {} got a gradient {}: {}", one.names.front(),
        one.arrived ? "twice in one backward()" : "while its unit is not in memory",
        one.arrived ? "add the losses up first"
                    : "the function given to run_unit() has to return every tensor that goes on");
  const bool keep = sums_kept_ && part_ == Part::more_to_come;
  unit.take_gradient(one, own_samples_,
                     keep         ? FsdpUnit::Take::keep
                     : sums_kept_ ? FsdpUnit::Take::sum
                                  : FsdpUnit::Take::mean);
  if (one.expected && --unit.missing == 0 && !keep && hooked.unit != kRoot) reduce(hooked.unit);
}

// All gradients of the unit that there will be are in its memory.
void FsdpRuntime::reduce(int unit) {
  FsdpUnit& one = unit_at(unit);
  one.complete_gradients();
  for (std::size_t g = 0; g < one.groups().size(); ++g) {
    UnitGroup& group = one.groups()[g];
    if (!group.layout.trained) continue;
    Reduction reduction;
    reduction.unit = unit;
    reduction.group = g;
    reduction.slot = slots_.slot_of(unit);
    char* whole = one.memory() + group.layout.unit_offset;
    char* out = static_cast<char*>(group.gradient.data_ptr());
    if (group.has_gradient) {
      // In place: this rank's part of `whole` is read by nobody else.
      out = reduction.part = whole + static_cast<std::size_t>(world_.rank()) * group.shard_bytes();
      reduction.before = group.gradient_samples;
    }
    CallOptions call = call_options();
    call.pre_scale = weight_;
    reduction.work = world_.reduce_scatter(whole, out, static_cast<std::size_t>(group.layout.count),
                                           group.type, ReduceOp::sum, call);
    group.has_gradient = true;
    group.gradient_samples = samples_;
    reductions_.push_back(std::move(reduction));
  }
  one.reduced = true;
  one.dirty = false;
  let_go(unit);
}

// The end of a backward for a unit of which gradients are missing: the loss does not depend on all
// that it put out.
void FsdpRuntime::reduce_incomplete(int unit) {
  FsdpUnit& one = unit_at(unit);
  if (unit != kRoot && slots_.slot_of(unit) < 0) {
    prepare_empty(unit);
  } else if (!one.dirty) {
    make_whole(unit);
  }
  reduce(unit);
}

// Memory for gradients, without the parameters.
void FsdpRuntime::prepare_empty(int unit) {
  const UnitSlots::Place place = slots_.take(unit);
  prepare(place);
  SlotState& slot = slot_states_[static_cast<std::size_t>(place.slot)];
  // One that was ahead and for nothing must not write any more.
  for (const Work& work : slot.gathers) work.wait(current_stream(device_));
  slot.gathers.clear();
  unit_at(unit).attach(static_cast<char*>(slot.memory.data()));
  for (UnitGroup& group : unit_at(unit).groups()) group.whole.zero_();
}

void FsdpRuntime::settle(Reduction& reduction) {
  {
    const TraceSpan span(TraceKind::communication, "wait for gradients");
    reduction.work.wait(current_stream(device_));
  }
  if (reduction.part == nullptr) return;
  UnitGroup& group = unit_at(reduction.unit).groups()[reduction.group];
  if (samples_ > 0) group.gradient.mul_(reduction.before / samples_);
  group.gradient.add_(
      at::from_blob(reduction.part, {group.layout.count}, group.gradient.options()));
}

void FsdpRuntime::settle_slot(int slot) {
  for (auto it = reductions_.begin(); it != reductions_.end();) {
    if (it->slot != slot || it->part == nullptr) {
      ++it;
      continue;
    }
    settle(*it);
    it = reductions_.erase(it);
  }
}

void FsdpRuntime::end_backward() {
  const at::NoGradGuard no_grad;
  const bool keep = sums_kept_ && part_ == Part::more_to_come;
  for (std::size_t u = 0; u < units_.size() && !keep; ++u) {
    const FsdpUnit& unit = units_[u];
    const bool ran = sums_kept_ ? unit.runs_in_step : unit.runs > 0;
    if (ran && unit.trained() && !unit.reduced) reduce_incomplete(static_cast<int>(u));
  }
  for (Reduction& reduction : reductions_) settle(reduction);
  reductions_.clear();
  if (part_ == Part::more_to_come) return;
  for (FsdpUnit& unit : units_) {
    unit.runs_in_step = false;
    for (UnitGroup& group : unit.groups()) {
      if (!group.layout.trained) continue;
      if (group.has_gradient && group.gradient_samples != samples_)
        group.gradient.mul_(group.gradient_samples / samples_);
      group.shard.mutable_grad() = group.has_gradient ? group.gradient : at::Tensor();
    }
  }
}

void FsdpRuntime::leave_backward() {
  in_backward_ = false;
  current_ = -1;
  for (const int unit : slots_.units()) slots_.unpin(unit);
  for (FsdpUnit& unit : units_) {
    if (unit.dirty) let_go(static_cast<int>(&unit - units_.data()));
    unit.begin_pass();
  }
  // The optimizer's step is next.
  if (part_ == Part::last) forget_whole_units();
  training_order_.end_pass();
}

// Memory must not go while the communicator works in it. Its errors are said where they matter.
void FsdpRuntime::forget_reductions() noexcept {
  for (const Reduction& reduction : reductions_) try {
      reduction.work.synchronize();
    } catch (const CommunicatorError&) {  // NOLINT(bugprone-empty-catch)
    }
  reductions_.clear();
}

void FsdpRuntime::zero_grad() {
  step_begun_ = false;
  for (FsdpUnit& unit : units_) {
    unit.runs_in_step = false;
    for (UnitGroup& group : unit.groups()) {
      group.has_gradient = false;
      group.shard.mutable_grad().reset();
      for (UnitParameter& one : group.parameters) one.kept.reset();
    }
  }
}

double FsdpRuntime::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({1}, at::TensorOptions(at::kDouble).device(device_));
  for (const FsdpUnit& unit : units_)
    for (const UnitGroup& group : unit.groups())
      if (group.layout.trained && group.shard.grad().defined())
        squares += group.shard.grad().norm(2, at::kDouble).square();
  world_
      .all_reduce(squares.data_ptr(), squares.data_ptr(), 1, DataType::f64, ReduceOp::sum,
                  call_options())
      .synchronize();
  const double norm = std::sqrt(squares.item<double>());
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const FsdpUnit& unit : units_)
    for (const UnitGroup& group : unit.groups())
      if (group.layout.trained && group.shard.grad().defined())
        group.shard.mutable_grad() *= factor;
  return norm;
}

}  // namespace af::train
