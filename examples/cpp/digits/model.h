// SPDX-License-Identifier: Apache-2.0
// The network: two convolutions and two linear layers on 8x8 images, about 38,000 parameters.
#pragma once

#include <torch/nn/modules/container/sequential.h>

namespace digits {

// From [n, 64] pixels of 0 to 16 (uint8) to [n, 10] logits.
class Model {
 public:
  explicit Model(uint64_t seed);
  at::Tensor forward(const at::Tensor& pixels);
  torch::nn::Sequential& layers() { return layers_; }

 private:
  torch::nn::Sequential layers_;
};

}  // namespace digits
