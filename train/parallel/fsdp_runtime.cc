// SPDX-License-Identifier: Apache-2.0
// Units come and go: gathering, and the forward passes.
#include "train/parallel/fsdp_runtime.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "af/train/trace.h"
#include "common/error.h"
#include "train/parallel/fsdp_graph.h"
#include "train/parallel/fsdp_stream.h"

namespace af::train {

int FsdpRuntime::find(const torch::nn::Module& unit) const {
  const auto found = unit_of_.find(&unit);
  return found == unit_of_.end() ? -1 : found->second;
}

CallOptions FsdpRuntime::call_options() const {
  CallOptions call;
  call.stream = current_stream(device_);
  return call;
}

std::vector<Work> FsdpRuntime::issue_gathers(int unit, char* memory, bool ahead) {
  CallOptions call = call_options();
  // What is waited for at once need not go to another thread.
  call.blocking = !ahead && device_.is_cpu();
  std::vector<Work> works;
  std::vector<int64_t>& versions = gathered_versions_[static_cast<std::size_t>(unit)];
  versions.clear();
  for (const UnitGroup& group : unit_at(unit).groups()) {
    versions.push_back(group.shard._version());
    works.push_back(world_.all_gather(group.shard.data_ptr(), memory + group.layout.unit_offset,
                                      static_cast<std::size_t>(group.layout.count), group.type,
                                      call));
  }
  return works;
}

void FsdpRuntime::gather(int unit, const UnitSlots::Place& place, bool ahead) {
  prepare(place);
  SlotState& slot = slot_states_[static_cast<std::size_t>(place.slot)];
  slot.gathers = issue_gathers(unit, static_cast<char*>(slot.memory.data()), ahead);
}

void FsdpRuntime::prepare(const UnitSlots::Place& place) {
  if (place.evicted >= 0) unit_at(place.evicted).detach();
  if (place.made) {
    slot_states_.emplace_back();
    slot_states_.back().memory = world_.allocate(slots_.bytes_of(place.slot));
  }
  settle_slot(place.slot);
}

bool FsdpRuntime::is_stale(int unit) const {
  const auto index = static_cast<std::size_t>(unit);
  const auto& groups = units_[index].groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g].shard._version() != gathered_versions_[index][g]) return true;
  return false;
}

void FsdpRuntime::gather_ahead(int unit) {
  if (unit <= kRoot || !options_.prefetch || slots_.slot_of(unit) >= 0) return;
  if (const auto place = slots_.take_ahead(unit)) gather(unit, *place, /*ahead=*/true);
}

void FsdpRuntime::gather_root() {
  FsdpUnit& root = unit_at(kRoot);
  if (root.empty() || (root_whole_ && !is_stale(kRoot))) return;
  char* memory = static_cast<char*>(root_memory_.data());
  const TraceSpan span(TraceKind::communication, "wait for parameters");
  for (const Work& work : issue_gathers(kRoot, memory, /*ahead=*/false))
    work.wait(current_stream(device_));
  root.attach(memory);
  root_whole_ = true;
}

void FsdpRuntime::make_whole(int unit) {
  FsdpUnit& one = unit_at(unit);
  if (one.empty()) return;
  if (unit == kRoot) return gather_root();
  if (slots_.slot_of(unit) >= 0 && !one.dirty && is_stale(unit)) let_go(unit);
  const TraceSpan span(TraceKind::communication, "wait for parameters");
  if (slots_.slot_of(unit) < 0) gather(unit, slots_.take(unit), /*ahead=*/false);
  const int place = slots_.slot_of(unit);
  SlotState& slot = slot_states_[static_cast<std::size_t>(place)];
  for (const Work& work : slot.gathers) work.wait(current_stream(device_));
  slot.gathers.clear();
  one.attach(static_cast<char*>(slot.memory.data()));
  slots_.touch(unit);
}

void FsdpRuntime::gather_instead(int unit, std::size_t group, const at::Tensor& shard) {
  const UnitGroup& one = unit_at(unit).groups()[group];
  world_
      .all_gather(shard.data_ptr(), unit_at(unit).memory() + one.layout.unit_offset,
                  static_cast<std::size_t>(one.layout.count), one.type, call_options())
      .synchronize();
}

void FsdpRuntime::let_go(int unit) {
  if (unit == kRoot) root_whole_ = false;
  unit_at(unit).detach();
  slots_.drop(unit);
}

void FsdpRuntime::forget_whole_units() {
  for (const int unit : slots_.units()) let_go(unit);
  let_go(kRoot);
}

void FsdpRuntime::begin_run(int unit) {
  const bool training = at::GradMode::is_enabled();
  UnitOrder& order = training ? training_order_ : evaluation_order_;
  if (unit == kRoot) {
    if (roots_running_++ > 0) return;
    if (training && options_.broadcast_buffers && model_.is_training()) broadcast_buffers();
    gather_root();
    gather_ahead(order.first());
    return;
  }
  make_whole(unit);
  slots_.pin(unit);
  if (!running_.empty() && running_.back() != unit) unit_at(running_.back()).encloses = true;
  running_.push_back(unit);
  gather_ahead(order.next_after(unit));
}

void FsdpRuntime::end_run(int unit, const std::vector<at::Tensor>& outputs, uint64_t first) {
  const bool training = at::GradMode::is_enabled();
  FsdpUnit& one = unit_at(unit);
  if (training) {
    ++one.runs;
    one.runs_in_step = true;
  }
  if (unit == kRoot) {
    if (--roots_running_ > 0 || training) return;
    forget_whole_units();
    evaluation_order_.end_pass();
    return;
  }
  if (training && !one.empty()) expect_backward(unit, outputs, first);
  leave_run(unit);
  if (!training && roots_running_ == 0) let_go(unit);
}

void FsdpRuntime::leave_run(int unit) {
  running_.pop_back();
  if (std::find(running_.begin(), running_.end(), unit) == running_.end()) slots_.unpin(unit);
}

void FsdpRuntime::abandon_run(int unit) noexcept {
  if (unit == kRoot) {
    --roots_running_;
  } else {
    leave_run(unit);
  }
}

// The unit is needed again when the gradient of one of its outputs is there, and done with when
// those of all parameters that the outputs depend on are.
void FsdpRuntime::expect_backward(int unit, const std::vector<at::Tensor>& outputs,
                                  uint64_t first) {
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = weak_from_this(), unit](const at::Tensor&) {
      const auto runtime = weak.lock();
      if (runtime == nullptr)
        throw Error("backward through a unit whose FullyShardedDataParallel is gone");
      runtime->before_backward(unit);
    });
  }
  if (!unit_at(unit).trained()) return;
  visit_leaves(outputs, first, [&](const torch::autograd::Node* node) {
    const auto found = hooked_of_.find(node);
    if (found == hooked_of_.end()) return;
    const HookedParameter& hooked = hooked_[found->second];
    if (hooked.unit != unit) return;  // of the root, say
    UnitParameter& one = unit_at(unit).groups()[hooked.group].parameters[hooked.parameter];
    if (!one.expected) ++unit_at(unit).missing;
    one.expected = true;
  });
}

void FsdpRuntime::broadcast_buffers() {
  if (buffers_of_model_.empty() || world_.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& buffer : buffers_of_model_)
    bytes.push_back(buffer.contiguous().view({-1}).view(at::kByte));
  const at::Tensor flat = at::cat(bytes);
  world_
      .broadcast(flat.data_ptr(), flat.data_ptr(), flat.nbytes(), DataType::u8, /*root=*/0,
                 call_options())
      .synchronize();
  if (world_.rank() == 0) return;
  int64_t offset = 0;
  for (const at::Tensor& buffer : buffers_of_model_) {
    const auto size = static_cast<int64_t>(buffer.nbytes());
    buffer.copy_(flat.narrow(0, offset, size)
                     .clone()  // aligned for the type
                     .view(buffer.scalar_type())
                     .view(buffer.sizes()));
    offset += size;
  }
}

}  // namespace af::train
