// SPDX-License-Identifier: Apache-2.0
#include "af/train/fully_sharded_data_parallel.h"

#include <ATen/core/grad_mode.h>

#include "common/error.h"
#include "train/parallel/fsdp_graph.h"
#include "train/parallel/fsdp_runtime.h"
#include "train/parallel/fsdp_state.h"

namespace af::train {
namespace {

// Whose forward() runs on this thread, innermost last. (Ranks may be threads of a process.)
thread_local std::vector<FsdpRuntime*> running;

}  // namespace

FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& model, Communicator& world,
                                                   FullyShardedOptions options)
    : runtime_(std::make_shared<FsdpRuntime>(model, world, std::move(options))) {}

FullyShardedDataParallel::~FullyShardedDataParallel() = default;

std::vector<at::Tensor> FullyShardedDataParallel::parameters() const {
  std::vector<at::Tensor> shards;
  for (const FsdpUnit& unit : runtime_->units())
    for (const UnitGroup& group : unit.groups())
      if (group.layout.trained) shards.push_back(group.shard);
  return shards;
}

FullyShardedDataParallel::Result FullyShardedDataParallel::backward(const at::Tensor& loss,
                                                                    int64_t samples) {
  return runtime_->backward(loss, samples, FsdpRuntime::Part::last);
}

FullyShardedDataParallel::Result FullyShardedDataParallel::accumulate(const at::Tensor& loss,
                                                                      int64_t samples) {
  return runtime_->backward(loss, samples, FsdpRuntime::Part::more_to_come);
}

void FullyShardedDataParallel::zero_grad() {
  runtime_->zero_grad();
}

double FullyShardedDataParallel::clip_grad_norm(double max_norm) {
  return runtime_->clip_grad_norm(max_norm);
}

void FullyShardedDataParallel::for_each_parameter(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  const at::NoGradGuard no_grad;
  for (std::size_t u = 0; u < runtime_->units().size(); ++u) {
    FsdpUnit& unit = runtime_->units()[u];
    if (unit.empty()) continue;
    runtime_->make_whole(static_cast<int>(u));
    for (const UnitGroup& group : unit.groups())
      for (const UnitParameter& one : group.parameters) visit(one.names.front(), one.view);
    runtime_->let_go(static_cast<int>(u));
  }
}

void FullyShardedDataParallel::keep(const std::string& name, torch::optim::Optimizer& optimizer) {
  if (name.empty() || name == "model" || !runtime_->kept().emplace(name, &optimizer).second)
    throw Error::format("something is kept as \"{}\" already", name);
}

void FullyShardedDataParallel::save(const std::filesystem::path& file, const State& more) {
  save_sharded(*runtime_, file, more);
}

void FullyShardedDataParallel::save(const CheckpointDirectory& directory, int64_t step,
                                    const State& more) {
  save_sharded(*runtime_, directory, step, more);
}

State FullyShardedDataParallel::load(const std::filesystem::path& file) {
  return load_sharded(*runtime_, file);
}

FullyShardedDataParallel::Pass::Pass(FsdpRuntime& runtime, const torch::nn::Module* unit)
    : runtime_(runtime), unit_(FsdpRuntime::kRoot) {
  if (unit != nullptr) unit_ = runtime.find(*unit);
  if (unit_ < 0)
    throw Error::format("run() was called with a {} that is none of the units",
                        unit == nullptr ? std::string() : unit->name());
  running.push_back(&runtime);
  try {
    runtime_.begin_run(unit_);
  } catch (...) {
    running.pop_back();
    throw;
  }
  first_operation_ = next_operation();
}

void FullyShardedDataParallel::Pass::finish(const std::vector<at::Tensor>& outputs) {
  finished_ = true;
  running.pop_back();
  runtime_.end_run(unit_, outputs, first_operation_);
}

FullyShardedDataParallel::Pass::~Pass() {
  if (finished_) return;
  running.pop_back();
  runtime_.abandon_run(unit_);
}

FsdpRuntime* FullyShardedDataParallel::Pass::runtime_with(const torch::nn::Module& unit) {
  for (auto it = running.rbegin(); it != running.rend(); ++it)
    if ((*it)->find(unit) > FsdpRuntime::kRoot) return *it;
  return nullptr;
}

}  // namespace af::train
