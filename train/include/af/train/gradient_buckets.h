// SPDX-License-Identifier: Apache-2.0
// The gradients of a model as a few flat tensors: what DistributedDataParallel and DataParallel
// reduce, and what a flat optimizer updates the parameters from in one pass over each bucket.
//
//   const af::train::GradientBuckets& all = ddp.gradients();
//   for (const af::train::GradientBucket& bucket : all.buckets)
//     for (const af::train::GradientSlot& slot : bucket.slots)
//       if (slot.used) update(slot.parameter, bucket.gradients.narrow(0, slot.offset,
//                                                                     slot.elements), all.scale);
//
// Look at it anew in every step, between the reduction and the next zero_grad(): the tensors are
// others after a reduction in another world, and the slots may be others too (see `layout`).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "af/export.h"

namespace af::train {

// The place of a parameter's gradient in its bucket.
struct GradientSlot {
  std::size_t index = 0;  // in the model's parameters that need a gradient, in their order
  at::Tensor parameter;
  int64_t offset = 0;    // in elements; a multiple of 64 bytes
  int64_t elements = 0;  // the gradient is contiguous, as the parameter is
  // False: no rank had a gradient for it in this step, and a stock optimizer would skip it.
  bool used = true;
};

// One type and one device.
struct GradientBucket {
  // Flat and contiguous; what lies between the slots is zero. The parameters' grad() are views of
  // the same memory.
  at::Tensor gradients;
  std::vector<GradientSlot> slots;  // by rising offset
};

struct GradientBuckets {
  std::vector<GradientBucket> buckets;
  // What `gradients` still have to be multiplied by to be the mean over the samples: an optimizer
  // that reads them once anyway does it in that pass. 1 after apply_scale(). A scaler of losses
  // divides it by its scale.
  double scale = 1;
  // Another number means other slots: state that lies as the gradients do has to be moved, by
  // GradientSlot::index. It changes once, behind the first backward (buckets are then built anew
  // in the order in which gradients come), before that step's update; and it may in a new world.
  std::uint64_t layout = 0;
};

// Multiplies, where scale is not 1: now the gradients are the mean.
AF_PUBLIC void apply_scale(GradientBuckets& all);

}  // namespace af::train
