// SPDX-License-Identifier: Apache-2.0
#include "af/train/distributed_data_parallel.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "af/train/flat_optimizer.h"
#include "common/error.h"
#include "train/parallel/gradient_reducer.h"
#include "train/parallel/model_agreement.h"
#include "train/parallel/tensor_broadcast.h"

namespace af::train {
namespace {

GradientReducer::Options reducer_options(const DistributedDataParallelOptions& options) {
  GradientReducer::Options reducer;
  reducer.limits = {options.first_bucket_bytes, options.bucket_bytes};
  reducer.unused = options.find_unused_parameters ? GradientReducer::Unused::detect
                                                  : GradientReducer::Unused::refuse;
  reducer.compression = options.compression;
  return reducer;
}

}  // namespace

struct DistributedDataParallel::Impl {
  Impl(torch::nn::Module& the_model, Communicator& the_world,
       DistributedDataParallelOptions the_options)
      : model(the_model),
        world(the_world),
        options(the_options),
        buffers(model.buffers()),
        reducer(model, reducer_options(options)) {}

  torch::nn::Module& model;
  Communicator& world;
  const DistributedDataParallelOptions options;
  const std::vector<at::Tensor> buffers;  // collecting them takes longer than sending none
  GradientReducer reducer;
  FlatOptimizer* folded = nullptr;
  int no_sync = 0;  // guards that live

  // Of the backward passes since the last reduction.
  int64_t samples = 0;
  // Gradients are the sum of those of mean losses, times samples / weight of each pass: the first
  // pass is as it would be alone.
  double weight = 0;
  double loss_sum = 0;                                 // of losses in host memory, by samples
  std::vector<std::pair<at::Tensor, int64_t>> losses;  // on a device: reading one waits for it

  void begin_anew() {
    samples = 0;
    weight = 0;
    loss_sum = 0;
    losses.clear();
  }
  void add_loss(const at::Tensor& loss, int64_t of_samples);
  void prepare(int64_t pass_samples);
  double mean_loss() const;
  Step finish();
};

void DistributedDataParallel::Impl::prepare(int64_t pass_samples) {
  if (pass_samples < 0) throw Error::format("a backward pass of {} samples", pass_samples);
  samples += pass_samples;
  if (weight == 0) weight = static_cast<double>(pass_samples);
  if (no_sync == 0) reducer.expect(world, weight);
}

void DistributedDataParallel::Impl::add_loss(const at::Tensor& loss, int64_t of_samples) {
  if (loss.is_cpu())
    loss_sum += loss.item<double>() * static_cast<double>(of_samples);
  else
    losses.emplace_back(loss.detach(), of_samples);
}

double DistributedDataParallel::Impl::mean_loss() const {
  double sum = loss_sum;
  for (const auto& [loss, count] : losses) sum += loss.item<double>() * static_cast<double>(count);
  return samples > 0 ? sum / static_cast<double>(samples)
                     : std::numeric_limits<double>::quiet_NaN();
}

DistributedDataParallel::Step DistributedDataParallel::Impl::finish() {
  const double loss = mean_loss();
  if (no_sync > 0) return {samples, loss};
  const GradientReducer::Share share{samples, weight, samples > 0 ? loss : 0};
  begin_anew();
  const StepSums sums = reducer.finish(world, share, {});
  if (folded != nullptr)
    folded->scale_gradients(reducer.gradients().scale);
  else
    apply_scale(reducer.gradients());
  if (options.broadcast_buffers) broadcast_tensors(world, buffers, /*root=*/0);
  return {static_cast<int64_t>(sums.samples),
          sums.samples > 0 ? sums.loss / sums.samples : std::numeric_limits<double>::quiet_NaN()};
}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& model, Communicator& world,
                                                 DistributedDataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, world, options)) {
  if (impl_->reducer.empty()) throw Error("DistributedDataParallel: no parameter needs a gradient");
  const at::NoGradGuard no_grad;
  const ModelFingerprint mine = fingerprint_of(model);
  const auto all = gather_numbers(world, {mine.checksum, mine.tensors, mine.elements},
                                  model.parameters().front().device());
  for (std::size_t rank = 0; rank * 3 < all.size(); ++rank)
    check_same_model(rank, {all[3 * rank], all[3 * rank + 1], all[3 * rank + 2]},
                     {all[0], all[1], all[2]});
  impl_->reducer.allocate(world, /*kept=*/false, /*layout_root=*/0);
  broadcast_tensors(world, model.parameters(), /*root=*/0);
  broadcast_tensors(world, impl_->buffers, /*root=*/0);
}

DistributedDataParallel::~DistributedDataParallel() = default;

DistributedDataParallel::Step DistributedDataParallel::backward(const at::Tensor& loss,
                                                                int64_t samples) {
  Impl& impl = *impl_;
  impl.prepare(samples);
  if (samples > 0) {
    if (!loss.defined()) throw Error::format("backward: {} samples and no loss", samples);
    impl.add_loss(loss, samples);
    const double factor = static_cast<double>(samples) / impl.weight;
    if (factor == 1)
      loss.backward();
    else
      loss.backward(at::full_like(loss, factor));
  }
  return impl.finish();
}

void DistributedDataParallel::prepare(int64_t samples) {
  Impl& impl = *impl_;
  if (samples > 0 && impl.weight > 0 && static_cast<double>(samples) != impl.weight)
    throw Error::format(
        "prepare: {} samples behind a pass of {:g}: their gradients would not count alike (use "
        "backward())",
        samples, impl.weight);
  impl.prepare(samples);
}

DistributedDataParallel::Step DistributedDataParallel::finish(const at::Tensor& loss) {
  Impl& impl = *impl_;
  if (loss.defined() && impl.weight > 0) impl.add_loss(loss, static_cast<int64_t>(impl.weight));
  return impl.finish();
}

NoSync DistributedDataParallel::no_sync() {
  ++impl_->no_sync;
  return NoSync([this] { --impl_->no_sync; });
}

void DistributedDataParallel::zero_grad() {
  impl_->begin_anew();
  impl_->reducer.zero();
}

GradientBuckets& DistributedDataParallel::gradients() {
  return impl_->reducer.gradients();
}

void DistributedDataParallel::fold_scale_into(FlatOptimizer& optimizer) {
  impl_->folded = &optimizer;
}

}  // namespace af::train
