// SPDX-License-Identifier: Apache-2.0
// The length of a gradient, and clipping by it.
//
//   replicas.step(rows->size(), loss, [&] {
//     af::train::clip_gradients(adam, 1.0);
//     adam.step();
//   });
//
// In float64 over a fixed order: the same on all ranks whose gradients are the same, on every CPU
// and with every number of threads.
//
// `shards`: where each rank has a part of each parameter only (FullyShardedDataParallel), the ranks
// whose parts make up the whole. Then the call is collective, and the result is the same on all.
// Without it, gradients are those of the whole model, the same on all ranks after a reduction.
#pragma once

#include <ATen/core/ivalue.h>  // first: with clang the others need it complete
#include <torch/optim/optimizer.h>

#include "af/communicator.h"
#include "af/export.h"

namespace af::train {

struct GradientNorm {
  double norm = 0;
  bool finite = true;  // no infinity and no NaN in any gradient
};

// The 2-norm over the gradients of all parameters of the optimizer as its next step will take them
// (times FlatOptimizer::gradient_factor()). Parameters without a gradient count as zero.
AF_PUBLIC GradientNorm gradient_norm(const torch::optim::Optimizer& optimizer,
                                     Communicator* shards = nullptr);

// Multiplies them by what makes their norm at most `most`: a flat optimizer in its next step,
// others at once. Returns the norm before. As in torch::nn::utils::clip_grad_norm_ a norm that is
// not finite makes all of them NaN or zero; GradScaler leaves such a step out.
AF_PUBLIC double clip_gradients(torch::optim::Optimizer& optimizer, double most,
                                Communicator* shards = nullptr);

// Multiplies the gradients: a flat optimizer's in its next step, others at once.
AF_PUBLIC void scale_gradients(torch::optim::Optimizer& optimizer, double factor);

}  // namespace af::train
