// SPDX-License-Identifier: Apache-2.0
// A model in stages, each on a device of its own and run by a thread of its own: for a model that
// is larger than a GPU, or that two GPUs are to work on at once.
//
//   const auto devices = af::train::devices_for_stages(2);         // {cuda:0, cuda:1}, or the CPU
//   af::train::Pipeline model({af::train::stage("first", first, devices[0]),
//                              af::train::stage("second", second, devices[1])});
//   torch::optim::Adam adam(model.parameters());
//   const auto loss = [](const Tensors& outputs, const Tensors& targets) {
//     return at::binary_cross_entropy_with_logits(outputs[0], targets[0]);
//   };
//   for (…) {
//     model.zero_grad();
//     const at::Tensor mean = model.step({x}, {y}, loss);          // forward, loss and backward
//     adam.step();
//   }
//
// step() cuts the batch along its first axis into micro-batches of equal size to within a row.
// While the second stage works on the first micro-batch, the first one works on the second, so both
// devices are busy for M/(M+S-1) of the time (M micro-batches, S stages) where one would be idle.
// Data follows: a stage's outputs are brought to the next one's device, and gradients back.
// The schedule is 1F1B (Narayanan et al., PipeDream, SOSP 2019, in its synchronous form) or GPipe
// (Huang et al., arXiv 1811.06965); both give the same gradients.
//
// Gradients are those of the unsplit model on the whole batch, but for rounding: each micro-batch
// counts by its rows. That holds for a loss that is a mean over rows and for layers that treat rows
// one by one. Batch norm sees a micro-batch at a time, as everywhere with micro-batches.
//
// - On the CPU the same code runs with all stages on at::kCPU: a stage is a thread. Each thread
//   computes with at::get_num_threads() threads, so with two stages set half of the cores.
// - Grad mode, autocast (with its types) and the current streams of the caller hold in the stages'
//   threads. Backward is run without autocast. Under no_grad step() computes the loss alone.
// - Random numbers (dropout) of a stage in training mode come from a generator that is seeded for
//   each step, stage and micro-batch, from one draw of the default CPU generator in step(): after
//   torch::manual_seed(s) a training gives the same numbers again, whatever the threads do, also
//   with all stages on one device. The numbers are not those that the unsplit model would draw.
// - A stage that throws ends the step on all stages: step() throws af::Error with the stage, its
//   device, the micro-batch and the reason (a CommunicatorError stays one). Gradients are then
//   incomplete; the next zero_grad() and step() work.
// - With DataParallel: give it module(). Backward runs once for each micro-batch, so keep the ranks
//   apart meanwhile:  { const auto apart = replicas.no_sync(); loss = model.step(…); }  and then
//   replicas.step(rows, loss, …).
//
// A stage must not change its inputs in place. No parameter may belong to two stages.
// Use from one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "af/export.h"

namespace af::train {

using Tensors = std::vector<at::Tensor>;

struct PipelineStage {
  std::string name;  // in messages, and before its parameters' names: letters, digits, _ and -
  std::shared_ptr<torch::nn::Module> module;  // moved to the device
  at::Device device;
  // What the stage before returned (or the batch's inputs), on `device`, to what the next one gets
  // (or the outputs). Any number of tensors; those that need no gradient (masks, indices) pass
  // through, and an undefined one stays undefined. Called in the stage's thread only.
  std::function<Tensors(const Tensors&)> forward;
};

// Of a module whose forward() takes a tensor and returns one: torch::nn::Sequential, Linear, …
template <typename Holder>
PipelineStage stage(std::string name, Holder module, at::Device device) {
  return {std::move(name), module.ptr(), device, [module](const Tensors& inputs) mutable {
            return Tensors{module->forward(inputs.at(0))};
          }};
}

enum class PipelineSchedule {
  // A stage holds what backward needs of as many micro-batches as there are stages from it on.
  one_forward_one_backward,
  // All forward, then all backward: of all micro-batches. For comparison.
  gpipe,
};

struct PipelineOptions {
  // More of them keep the devices busier, and make each operation smaller. Four per stage is usual.
  int micro_batches = 4;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
};

class AF_PUBLIC Pipeline {
 public:
  // Moves the stages' modules to their devices and starts their threads. Throws af::Error for a
  // device that is not there, a parameter in two stages, a name that is used twice.
  explicit Pipeline(std::vector<PipelineStage> stages, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The mean loss over the rows of a micro-batch, a scalar; on the last stage's device and in its
  // thread.
  using Loss = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

  // Adds the gradient of the mean loss over the batch to the parameters' .grad (in place where
  // there is one), and returns that mean, on the last stage's device. Inputs and targets may be on
  // any device; all have the rows of the batch as their first axis. Fewer rows than micro-batches:
  // as many micro-batches as rows. Throws af::Error.
  at::Tensor step(const Tensors& inputs, const Tensors& targets, const Loss& loss);

  // The last stage's outputs, put together along their first axis. In grad mode they can be
  // differentiated as those of one module (without the schedule); for validation use no_grad.
  Tensors forward(const Tensors& inputs);

  // Of all stages, in order; on their devices.
  std::vector<at::Tensor> parameters() const;
  // The whole model, its children named as the stages: for state_of(), DataParallel, train().
  torch::nn::Module& module();
  // Sets gradients to zero and keeps them, as views of buckets have to be.
  void zero_grad();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A device for each stage: the worker's GPUs from cuda:0 on, or the CPU for all of them where
// libtorch can use no GPU. Throws af::Error if there are GPUs, but too few for the worker: it gets
// two with --af-gpus-per-worker=2.
AF_PUBLIC std::vector<at::Device> devices_for_stages(int stages);

}  // namespace af::train
