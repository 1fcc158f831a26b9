// SPDX-License-Identifier: Apache-2.0
#include "af/train/pipeline.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <set>

#include "af/train/dealer.h"
#include "common/error.h"
#include "train/parallel/caller_state.h"
#include "train/parallel/micro_batch_random.h"
#include "train/parallel/pipeline_stage.h"
#include "train/parallel/stage_devices.h"
#include "train/parallel/stage_executor.h"

namespace af::train {
namespace {

void check_names(const std::vector<PipelineStage>& stages) {
  std::set<std::string> names;
  for (const PipelineStage& stage : stages) {
    // They become the names of submodules, in which a dot separates.
    if (stage.name.empty() || stage.name.find('.') != std::string::npos)
      throw Error::format("'{}' cannot be the name of a stage: letters, digits, _ and -",
                          stage.name);
    if (!names.insert(stage.name).second)
      throw Error::format("two stages are named {}: give each a name of its own", stage.name);
  }
}

// Gradients of two threads would be added to it in any order, and on two GPUs it cannot be at all.
void check_parameters(const std::vector<PipelineStage>& stages) {
  std::map<const void*, std::string> owner;
  for (const PipelineStage& stage : stages)
    for (const auto& item : stage.module->named_parameters()) {
      const auto [entry, added] = owner.emplace(item.value().unsafeGetTensorImpl(), stage.name);
      if (!added && entry->second != stage.name)
        throw Error::format(
            "parameter {} of stage {} also belongs to stage {}: put both uses into one stage",
            item.key(), stage.name, entry->second);
    }
}

void check_devices(std::vector<PipelineStage>& stages) {
  std::vector<std::string> names;
  std::vector<at::Device> devices;
  for (PipelineStage& stage : stages) {
    names.push_back(stage.name);
    devices.push_back(stage.device);
    // "cuda" without a number is the current one.
    if (!devices.back().has_index() && devices.back().is_cuda()) devices.back().set_index(0);
  }
  if (const auto fault = fault_of_devices(names, devices, stage_devices_of_process()))
    throw Error(*fault);
  for (PipelineStage& stage : stages)
    if (!stage.device.has_index() && !stage.device.is_cpu())
      stage.device = c10::impl::VirtualGuardImpl(stage.device.type()).getDevice();
}

int64_t rows_of(const Tensors& inputs, const Tensors& targets) {
  if (inputs.empty()) throw Error("a pipeline's step needs at least one input");
  int64_t rows = -1;
  for (const Tensors* tensors : {&inputs, &targets})
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || tensor.dim() == 0)
        throw Error(
            "inputs and targets have the rows of the batch as their first axis: one has "
            "no axis");
      if (rows >= 0 && tensor.size(0) != rows)
        throw Error::format(
            "inputs and targets have the rows of the batch as their first axis: one has {}, "
            "another {}",
            rows, tensor.size(0));
      rows = tensor.size(0);
    }
  if (rows == 0) throw Error("the batch has no rows: leave the step out");
  return rows;
}

std::vector<Tensors> cut(const Tensors& tensors, int64_t rows, int micro_batches) {
  std::vector<Tensors> parts(static_cast<std::size_t>(micro_batches));
  for (int i = 0; i < micro_batches; ++i) {
    const Share share = contiguous_share(rows, i, micro_batches);
    for (const at::Tensor& tensor : tensors)
      parts[static_cast<std::size_t>(i)].push_back(tensor.slice(0, share.first, share.last));
  }
  return parts;
}

}  // namespace

struct Pipeline::Impl {
  std::vector<PipelineStage> stages;
  PipelineOptions options;
  torch::nn::Module whole;
  std::vector<at::Device> devices;
  std::vector<at::Generator> generators;
  std::vector<std::unique_ptr<StageExecutor>> executors;  // the last: they use the others

  std::unique_ptr<PipelineStep> make_step(const Tensors& inputs, const Tensors& targets,
                                          const Loss& loss);
  void run(PipelineStep& step);
};

Pipeline::Pipeline(std::vector<PipelineStage> stages, PipelineOptions options)
    : impl_(std::make_unique<Impl>()) {
  if (stages.empty()) throw Error("a pipeline needs at least one stage");
  if (options.micro_batches < 1)
    throw Error::format("{} micro-batches: a step needs at least one", options.micro_batches);
  check_names(stages);
  check_parameters(stages);
  check_devices(stages);
  impl_->options = options;
  for (PipelineStage& stage : stages) {
    stage.module->to(stage.device);
    impl_->whole.register_module(stage.name, stage.module);
    impl_->devices.push_back(stage.device);
    impl_->generators.push_back(make_generator(stage.device));
    impl_->executors.push_back(std::make_unique<StageExecutor>());
  }
  impl_->stages = std::move(stages);
}

Pipeline::~Pipeline() = default;

std::unique_ptr<PipelineStep> Pipeline::Impl::make_step(const Tensors& inputs,
                                                        const Tensors& targets, const Loss& loss) {
  const int64_t rows = rows_of(inputs, targets);
  const auto count = static_cast<int>(std::min<int64_t>(options.micro_batches, rows));
  auto step = std::unique_ptr<PipelineStep>(
      new PipelineStep{.inputs = cut(inputs, rows, count),
                       .targets = cut(targets, rows, count),
                       .loss = loss,
                       .schedule = options.schedule,
                       .stages = static_cast<int>(stages.size()),
                       .links = {static_cast<int>(stages.size()), count},
                       .outputs = std::vector<Tensors>(static_cast<std::size_t>(count))});
  for (int i = 0; i < count; ++i) {
    const Share share = contiguous_share(rows, i, count);
    step->weights.push_back(static_cast<double>(share.last - share.first) /
                            static_cast<double>(rows));
  }
  step->random = std::any_of(stages.begin(), stages.end(), [](const PipelineStage& stage) {
    return stage.module->is_training();
  });
  if (step->random) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    step->seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  return step;
}

void Pipeline::Impl::run(PipelineStep& step) {
  const CallerState caller(devices);
  for (std::size_t i = 0; i < stages.size(); ++i)
    executors[i]->start([this, &caller, &step, i] {
      StageRun stage(stages[i], static_cast<int>(i), generators[i], step);
      caller.run_with(devices[i], [&] { stage.run(); });
    });
  for (const auto& executor : executors) executor->wait();
  step.links.rethrow();
}

at::Tensor Pipeline::step(const Tensors& inputs, const Tensors& targets, const Loss& loss) {
  if (!loss) throw Error("a pipeline's step needs a loss");
  const auto step = impl_->make_step(inputs, targets, loss);
  step->backward = at::GradMode::is_enabled();
  impl_->run(*step);
  return step->mean_loss;
}

Tensors Pipeline::forward(const Tensors& inputs) {
  const auto step = impl_->make_step(inputs, {}, nullptr);
  impl_->run(*step);
  Tensors outputs;
  for (std::size_t k = 0; k < step->outputs.front().size(); ++k) {
    Tensors parts;
    for (const Tensors& micro_batch : step->outputs) parts.push_back(micro_batch.at(k));
    outputs.push_back(parts.size() == 1 ? parts.front() : at::cat(parts));
  }
  return outputs;
}

std::vector<at::Tensor> Pipeline::parameters() const {
  return impl_->whole.parameters();
}

torch::nn::Module& Pipeline::module() {
  return impl_->whole;
}

void Pipeline::zero_grad() {
  for (const at::Tensor& parameter : parameters())
    if (parameter.grad().defined()) parameter.mutable_grad().zero_();
}

}  // namespace af::train
