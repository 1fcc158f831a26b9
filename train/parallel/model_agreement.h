// SPDX-License-Identifier: Apache-2.0
// Whether all ranks have the same model: names, shapes and types, not the values.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "af/communicator.h"

namespace af::train {

struct ModelFingerprint {
  uint64_t checksum = 0;
  uint64_t tensors = 0;
  uint64_t elements = 0;
};
// `more`: what else must be the same.
ModelFingerprint fingerprint_of(const torch::nn::Module& model, const std::string& more = "");

// Throws af::Error that names `rank`, if its model is not rank 0's.
void check_same_model(std::size_t rank, const ModelFingerprint& theirs,
                      const ModelFingerprint& rank_0);

// The numbers of all ranks, one after the other, as many of each. Collective. They travel on
// `device`: NCCL takes no host memory.
std::vector<uint64_t> gather_numbers(Communicator& world, std::vector<uint64_t> mine,
                                     at::Device device);

}  // namespace af::train
