// SPDX-License-Identifier: Apache-2.0
// Three parameters with gradients from a formula.
#pragma once

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace af::train {

class SmallModel : public torch::nn::Module {
 public:
  // `gaps`: parameters are every second element of some memory.
  explicit SmallModel(at::ScalarType type, bool gaps = false, int64_t width = 6) {
    int number = 0;
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{width, width + 1}, {width}, {1, width}}) {
      int64_t elements = 1;
      for (const int64_t size : shape) elements *= size;
      at::Tensor values = at::arange(elements, at::TensorOptions(at::kDouble));
      values = (values * 0.37 + number).sin().to(type).view(shape);
      if (gaps) {
        auto twice = shape;
        twice.back() *= 2;
        values = at::zeros(twice, values.options())
                     .slice(static_cast<int64_t>(shape.size()) - 1, 0, twice.back(), 2)
                     .copy_(values);
      }
      register_parameter("p" + std::to_string(number++), values);
    }
  }

  std::vector<at::Tensor> parameters() const { return torch::nn::Module::parameters(); }

  void set_gradients(int step) {
    for (at::Tensor parameter : parameters()) {
      const at::Tensor at = at::arange(parameter.numel(), at::TensorOptions(at::kDouble));
      const at::Tensor gradient = ((at + 1) * (0.11 + 0.01 * step)).cos() * (1 + 0.1 * step);
      parameter.mutable_grad() =
          gradient.to(parameter.scalar_type()).view(parameter.sizes()).clone();
    }
  }

  // The largest difference between the parameters.
  double distance(const SmallModel& other) const {
    double most = 0;
    const auto mine = parameters(), theirs = other.parameters();
    for (std::size_t i = 0; i < mine.size(); ++i)
      most =
          std::max(most, (mine[i] - theirs[i]).abs().max().to(at::kDouble).detach().item<double>());
    return most;
  }
};

}  // namespace af::train
