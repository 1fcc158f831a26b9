// SPDX-License-Identifier: Apache-2.0
#include "af/train/gradient_buckets.h"

#include <ATen/core/grad_mode.h>

namespace af::train {

void apply_scale(GradientBuckets& all) {
  if (all.scale == 1) return;
  const at::NoGradGuard no_grad;
  for (const GradientBucket& bucket : all.buckets) at::Tensor(bucket.gradients).mul_(all.scale);
  all.scale = 1;
}

}  // namespace af::train
