// SPDX-License-Identifier: Apache-2.0
// The random number generators of a rank (dropout, shuffling with at::randperm, …) in a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "af/export.h"

namespace af::train {

// Of libtorch's default generators: the host's, and that of `device` if it is another one. Tensors
// of bytes; `device` is undefined for a rank on the host. The sizes are those of the libtorch in
// use.
struct RandomState {
  at::Tensor host;
  at::Tensor device;
};
AF_PUBLIC RandomState random_state(at::Device device);

// Throws af::Error if it is not one of this libtorch; what is undefined stays as it is.
AF_PUBLIC void set_random_state(const RandomState& state, at::Device device);

// For a rank that has no state to go on from: another sequence for each rank and step, and the same
// one each time.
AF_PUBLIC void seed_random(uint64_t seed, int64_t step, int rank, at::Device device);

}  // namespace af::train
