// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_unit.h"

#include <ATen/Functions.h>
#include <c10/core/StorageImpl.h>

#include <utility>

#include "common/error.h"
#include "train/parallel/reduced_type.h"

namespace af::train {
namespace {

at::TensorOptions options_of(const UnitGroup& group, at::Device device) {
  return at::TensorOptions(static_cast<at::ScalarType>(group.layout.type)).device(device);
}

}  // namespace

DataType shard_type(const std::string& parameter, at::ScalarType type, bool trained) {
  if (const auto floating = reduced_type(type)) return *floating;
  switch (type) {
    case at::kLong:
      if (!trained) return DataType::i64;
      break;
    case at::kInt:
      if (!trained) return DataType::i32;
      break;
    case at::kByte:
    case at::kBool:
      if (!trained) return DataType::u8;
      break;
    default:
      break;
  }
  throw Error::format(
      "parameter {} is {}, which cannot be sharded: f16, bf16, f32 and f64 can (and whole numbers "
      "that have no gradient)",
      parameter, c10::toString(type));
}

FsdpUnit::FsdpUnit(std::string name, std::vector<UnitGroup> groups, std::size_t bytes,
                   at::Device device, const Buffer& shards, int ranks)
    : name_(std::move(name)),
      groups_(std::move(groups)),
      bytes_(bytes),
      device_(device),
      ranks_(ranks) {
  for (UnitGroup& group : groups_) {
    group.shard = at::from_blob(
        static_cast<char*>(shards.data()) + group.layout.shard_offset, {group.layout.count},
        [keep = shards](void*) {}, options_of(group, device));
    if (!group.layout.trained) continue;
    group.shard.requires_grad_(true);
    group.gradient = at::empty({group.layout.count}, options_of(group, device));
  }
}

bool FsdpUnit::trained() const {
  for (const UnitGroup& group : groups_)
    if (group.layout.trained) return true;
  return false;
}

// The first time: from then on the storage stays, see above.
void FsdpUnit::view_memory(char* memory) {
  for (UnitGroup& group : groups_) {
    group.whole = at::from_blob(memory + group.layout.unit_offset, {group.layout.count * ranks_},
                                options_of(group, device_));
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      UnitParameter& one = group.parameters[i];
      int64_t elements = 1;
      for (const int64_t size : one.sizes) elements *= size;
      one.view = group.whole.narrow(0, group.layout.offsets[i], elements).view(one.sizes);
    }
  }
}

void FsdpUnit::fill(char* memory) {
  view_memory(memory);
  for (UnitGroup& group : groups_) {
    group.whole.zero_();
    for (UnitParameter& one : group.parameters) one.view.copy_(one.parameter.detach());
  }
}

void FsdpUnit::attach(char* memory) {
  if (memory_ == memory) return;
  for (UnitGroup& group : groups_) {
    c10::StorageImpl* storage = group.whole.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(
        at::DataPtr(memory + group.layout.unit_offset, group.whole.device()));
    storage->set_nbytes(group.shard_bytes() * static_cast<std::size_t>(ranks_));
    // (set_data leaves the parameters' version counters alone: autograd does not take this for a
    // change in place.)
    if (memory_ == nullptr)
      for (UnitParameter& one : group.parameters) one.parameter.set_data(one.view);
  }
  memory_ = memory;
}

void FsdpUnit::detach() {
  if (memory_ == nullptr) return;
  memory_ = nullptr;
  for (UnitGroup& group : groups_) {
    const at::Tensor empty = at::empty({0}, options_of(group, device_));
    for (UnitParameter& one : group.parameters) one.parameter.set_data(empty);
    c10::StorageImpl* storage = group.whole.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, group.whole.device()));
    storage->set_nbytes(0);
  }
}

void FsdpUnit::take_gradient(UnitParameter& one, int64_t samples, Take how) {
  at::Tensor gradient = std::exchange(one.parameter.mutable_grad(), at::Tensor());
  if (gradient.defined() && gradient.is_sparse())
    throw Error::format(
        "the gradient of parameter {} is sparse, and sharded gradients are dense: make the "
        "embedding without sparse(true)",
        one.names.front());
  if (samples == 0) gradient.reset();
  const auto weight = static_cast<double>(samples);
  if (how == Take::keep) {
    if (!gradient.defined()) return;
    if (one.kept.defined())
      one.kept.add_(gradient, weight);
    else
      one.kept = gradient.mul(weight);
    return;
  }
  one.arrived = true;
  dirty = true;
  if (one.kept.defined()) {
    one.view.copy_(one.kept);
    one.kept.reset();
    if (gradient.defined()) one.view.add_(gradient, weight);
  } else if (gradient.defined()) {
    one.view.copy_(gradient);
    if (how == Take::sum) one.view.mul_(weight);
  } else {
    one.view.zero_();
  }
}

void FsdpUnit::begin_pass() {
  missing = 0;
  runs = 0;
  reduced = false;
  dirty = false;
  for (UnitGroup& group : groups_)
    for (UnitParameter& one : group.parameters) one.expected = one.arrived = false;
}

void FsdpUnit::complete_gradients() {
  for (UnitGroup& group : groups_) {
    if (!group.layout.trained) continue;
    for (UnitParameter& one : group.parameters)
      if (!one.arrived) take_gradient(one, 0, Take::sum);
  }
}

}  // namespace af::train
