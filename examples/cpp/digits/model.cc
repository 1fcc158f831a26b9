// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/digits/model.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/utils.h>

namespace digits {

namespace nn = torch::nn;

Model::Model(uint64_t seed) {
  torch::manual_seed(seed);
  layers_ = nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::ReLU(),
                           nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)), nn::ReLU(),
                           nn::MaxPool2d(2), nn::Flatten(), nn::Linear(32 * 4 * 4, 64), nn::ReLU(),
                           nn::Linear(64, 10));
}

at::Tensor Model::forward(const at::Tensor& pixels) {
  const at::Tensor images = pixels.to(at::kFloat).mul(1.0 / 16).view({-1, 1, 8, 8});
  return layers_->forward(images);
}

}  // namespace digits
