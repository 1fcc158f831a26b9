// SPDX-License-Identifier: Apache-2.0
// Compiled with -fopenmp (train/module.mk): at::parallel_for is a template that has threads only in
// files that are.
#include <ATen/Parallel.h>

#include "train/parallel/flat_moments.h"

#if AT_PARALLEL_OPENMP && !defined(INTRA_OP_PARALLEL) && !defined(__clang_analyzer__)
#error "one thread only: compile this file with -fopenmp"
#endif

namespace af::train {

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& run) {
  at::parallel_for(0, count, grain, run);
}

}  // namespace af::train
