// SPDX-License-Identifier: Apache-2.0
// Says when the gradient of a parameter is complete in a backward pass: after all that flows into
// the parameter has been added up, and while backward goes on with the others.
//
// The hooks sit on autograd's accumulation nodes, which tensors only refer to weakly: they are held
// here, and the hooks are removed with this object, since a tensor may outlive it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace af::train {

class GradientHooks {
 public:
  GradientHooks() = default;
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // `ready` is called on the thread that runs backward: the caller's for host memory, one of
  // autograd's for each device. It must not throw: what leaves a hook ends backward half-way.
  // Gives the parameter's accumulation node, which lives as long as this object.
  const torch::autograd::Node* add(const at::Tensor& parameter, std::function<void()> ready);
  bool empty() const { return remove_.empty(); }

 private:
  // Each holds its node, in the kind of pointer that this libtorch has for it.
  std::vector<std::function<void()>> remove_;
};

}  // namespace af::train
