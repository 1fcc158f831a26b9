// SPDX-License-Identifier: Apache-2.0
// Data-parallel training in a world of a fixed size, as PyTorch's DistributedDataParallel: every
// rank computes gradients of its share of a batch, and when backward is over they are those of the
// whole batch on every rank. (DataParallel is for worlds whose ranks go and come.)
//
//   af::Communicator world = af::Communicator::from_environment();
//   af::train::DistributedDataParallel ddp(*model, world);     // now all have rank 0's model
//   torch::optim::Adam adam(model->parameters());
//   for (const auto& [x, y] : batches) {
//     ddp.zero_grad();
//     const at::Tensor loss = mse_loss(model->forward(x), y);  // the mean over this rank's rows
//     ddp.backward(loss, x.size(0));                           // in place of loss.backward()
//     adam.step();
//   }
//
// The model is used as it is, whatever its forward() takes and gives.
//
// Samples. backward() takes the number of samples that the loss is the mean of, and the gradients
// become those of the mean loss over the samples of all ranks, exactly, also where shares are of
// different sizes or empty. Where all have the same number it may be left out: then the gradients
// are the mean over the ranks, as PyTorch's are.
//
// Speed. Gradients lie in flat buckets in memory from Communicator::allocate(), which the backend
// reduces without a copy into or out of a bucket. A bucket is reduced as soon as backward has made
// its gradients and those before it, while backward goes on; a communicator with its progress
// thread (Options::progress_thread) overlaps the two where there is a spare core. The first bucket
// is small, so that it goes early. After the first step buckets are built anew, once, in the order
// in which gradients have come on rank 0.
//
// Buffers (batch norm's means) become rank 0's again behind each backward that reduces, so they are
// the same on all ranks before each forward.
//
// The gradients of a float model are the same bits on all ranks, and within a node those of adding
// up the ranks' gradients in the order of their ranks.
//
// Use from one thread; all ranks make the same calls in the same order, except as said. Errors:
// af::Error (models that differ, parameters without a gradient, named, on all ranks),
// CommunicatorError when a rank is lost, from the backward() that it is lost in: the world is
// broken then. What a reduction throws within backward waits until backward is over.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "af/communicator.h"
#include "af/export.h"
#include "af/train/gradient_buckets.h"
#include "af/train/no_sync.h"

namespace af::train {

class FlatOptimizer;

struct DistributedDataParallelOptions {
  // A bucket is closed when it has at least so many bytes: the first and the last of a type and
  // device; those between them, which grow from the first to this (or to a sixteenth of the model).
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Rank 0's buffers to all, behind each reduction.
  bool broadcast_buffers = true;
  // Parameters that a rank's loss does not depend on: false: an error on all ranks that names the
  // parameter. True: they count as zero there; one that no rank has used has no gradient, so that
  // optimizers pass over it. Costs nothing for a model of one bucket, and little for others.
  bool find_unused_parameters = false;
  // at::kHalf or at::kBFloat16: gradients are rounded to it, travel so and are added up in it
  // (within a node in f32), and are widened again. Half the traffic; about 3 or 2 digits.
  std::optional<at::ScalarType> compression;
};

class AF_PUBLIC DistributedDataParallel {
 public:
  // Collective. Checks that all ranks have the same parameters and buffers by name, shape and type,
  // and gives rank 0's values to all. Parameters that need a gradient: f64, f32, f16 or bf16.
  // `model` and `world` must outlive this object; no parameter may be added, changed in type or
  // moved to another device afterwards, nor its requires_grad changed.
  DistributedDataParallel(torch::nn::Module& model, Communicator& world,
                          DistributedDataParallelOptions options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Over all ranks, the same on all (within no_sync(): of this rank).
  struct Step {
    int64_t samples = 0;
    double loss = 0;  // mean over the samples; NaN if there are none
  };
  // loss.backward(), and the reduction. A rank without samples gives 0 and any loss, also none:
  // ddp.backward({}, 0). Collective, outside no_sync().
  Step backward(const at::Tensor& loss, int64_t samples = 1);

  // The same in two, around a backward of the program's own: of a loss that several models have
  // made, for example.
  //   first.prepare(n); second.prepare(n); loss.backward(); first.finish(loss);
  //   second.finish(loss);
  void prepare(int64_t samples = 1);
  Step finish(const at::Tensor& loss = {});

  // Gradients of several backward passes as of one: all but the last pass run while this lives.
  //   {
  //     const auto guard = ddp.no_sync();
  //     ddp.backward(loss_of(first), first.rows());
  //   }
  //   ddp.backward(loss_of(second), second.rows());
  // They become the mean over the samples of all passes (losses need not be divided by the number
  // of passes; with prepare() and finish(), the passes of a step must have equal numbers).
  NoSync no_sync();

  // The next backward begins anew. Optimizer::zero_grad() does it too.
  void zero_grad();

  // The flat gradients, behind backward(): to clip them, or for an optimizer of one's own.
  GradientBuckets& gradients();
  // From now on the optimizer, which goes over the gradients anyway, multiplies them by what makes
  // the mean of a sum (gradients().scale), instead of a pass of its own here. Until it has stepped
  // grad() is not the mean: do not look at it, and do not clip.
  void fold_scale_into(FlatOptimizer& optimizer);

  struct Impl;  // internal

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
