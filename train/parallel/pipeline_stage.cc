// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/pipeline_stage.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <utility>

#include "af/communicator.h"
#include "common/error.h"
#include "train/parallel/micro_batch_random.h"

namespace af::train {
namespace {

using Pass = StageOperation::Pass;

Tensors to_device(const Tensors& tensors, at::Device device) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors)
    moved.push_back(tensor.defined() ? tensor.to(device, tensor.scalar_type(),
                                                 /*non_blocking=*/true)
                                     : tensor);
  return moved;
}

}  // namespace

StageRun::StageRun(const PipelineStage& stage, int number, at::Generator& generator,
                   PipelineStep& step)
    : stage_(stage),
      number_(number),
      generator_(generator),
      step_(step),
      held_(step.inputs.size()) {}

void StageRun::run() noexcept {
  const auto micro_batches = static_cast<int>(step_.inputs.size());
  for (const StageOperation& operation :
       operations_of_stage(step_.schedule, number_, step_.stages, micro_batches)) {
    if (operation.pass == Pass::backward && !step_.backward) continue;
    try {
      step_.links.check();
      if (operation.pass == Pass::forward)
        forward(operation.micro_batch);
      else
        backward(operation.micro_batch);
    } catch (const PipelineLinks::Ended&) {
      return;
    } catch (...) {
      step_.links.fail(named(operation, std::current_exception()));
      return;
    }
  }
}

Tensors StageRun::receive(int micro_batch) {
  if (first()) return step_.inputs[static_cast<std::size_t>(micro_batch)];
  Tensors inputs = step_.links.take_outputs(number_ - 1, micro_batch);
  if (!step_.backward) return inputs;
  // The graph is cut here: each side differentiates its own part, in its own thread.
  for (at::Tensor& input : inputs)
    if (input.defined()) input = input.detach().set_requires_grad(input.requires_grad());
  return inputs;
}

Tensors StageRun::compute(int micro_batch, const Tensors& inputs) {
  const Tensors here = to_device(inputs, stage_.device);
  if (!step_.random) return stage_.forward(here);
  generator_.set_current_seed(seed_of_micro_batch(step_.seed, number_, micro_batch));
  const RandomGuard random(generator_);
  return stage_.forward(here);
}

at::Tensor StageRun::weighted_loss(int micro_batch, const Tensors& outputs) {
  const auto i = static_cast<std::size_t>(micro_batch);
  const at::Tensor loss = step_.loss(outputs, to_device(step_.targets[i], stage_.device));
  if (!loss.defined() || loss.numel() != 1)
    throw Error::format(
        "the loss is {}: it has to be one number, the mean over the rows",
        loss.defined() ? fmt::format("a tensor of {} numbers", loss.numel()) : "not a tensor");
  if (step_.backward && !loss.requires_grad())
    throw Error(
        "the loss does not depend on a parameter that is trained: there is nothing to learn "
        "(torch::NoGradGuard around step() computes the loss alone)");
  return loss.sum() * step_.weights[i];
}

void StageRun::forward(int micro_batch) {
  Tensors inputs = receive(micro_batch);
  Tensors outputs = compute(micro_batch, inputs);
  const auto i = static_cast<std::size_t>(micro_batch);
  if (!last()) {
    if (step_.backward) held_[i] = {std::move(inputs), outputs};
    step_.links.put_outputs(number_, micro_batch, std::move(outputs));
    return;
  }
  if (!step_.loss) {
    step_.outputs[i] = std::move(outputs);
    return;
  }
  const at::Tensor loss = weighted_loss(micro_batch, outputs);
  const at::Tensor value = loss.detach();
  step_.mean_loss = step_.mean_loss.defined() ? step_.mean_loss + value : value;
  if (step_.backward) held_[i] = {std::move(inputs), {loss}};
}

void StageRun::backward(int micro_batch) {
  Tensors gradients;
  if (last())
    gradients.emplace_back();  // of the loss: 1
  else
    gradients = step_.links.take_gradients(number_, micro_batch);
  // Taken out, so that the activations are freed at the end of this.
  const Held held = std::exchange(held_[static_cast<std::size_t>(micro_batch)], {});
  Tensors roots;
  Tensors of_roots;
  for (std::size_t k = 0; k < held.outputs.size(); ++k) {
    const bool wanted = held.outputs[k].defined() && held.outputs[k].requires_grad();
    if (!wanted || (!last() && !gradients[k].defined())) continue;
    roots.push_back(held.outputs[k]);
    of_roots.push_back(gradients[k]);
  }
  if (!roots.empty()) {
    // As autocast's documentation asks for: each operation's gradient has that operation's type.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    torch::autograd::backward(roots, of_roots);
  }
  if (first()) return;
  Tensors back;
  for (const at::Tensor& input : held.inputs)
    back.push_back(input.defined() ? input.grad() : at::Tensor());
  step_.links.put_gradients(number_ - 1, micro_batch, std::move(back));
}

std::exception_ptr StageRun::named(const StageOperation& operation,
                                   std::exception_ptr error) const {
  std::string reason;
  try {
    std::rethrow_exception(error);
  } catch (const CommunicatorError&) {
    return error;  // its kind says whether the world can go on
  } catch (const c10::Error& torch) {
    reason = torch.what_without_backtrace();
  } catch (const std::exception& other) {
    reason = other.what();
  } catch (...) {
    reason = "an exception that is no std::exception";
  }
  return std::make_exception_ptr(Error::format(
      "stage {} of {}, {}, on {}, micro-batch {} of {}, {}: {}", number_ + 1, step_.stages,
      stage_.name, stage_.device.str(), operation.micro_batch + 1, step_.inputs.size(),
      operation.pass == Pass::forward ? "forward" : "backward", reason));
}

}  // namespace af::train
