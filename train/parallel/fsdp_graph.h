// SPDX-License-Identifier: Apache-2.0
// Which parameters the graph of a unit's outputs leads to: those that will get gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace af::train {

// The number that the next operation of this thread gets in autograd's order.
uint64_t next_operation();

// Calls `leaf` for each accumulation node (that of a parameter) that is reached from the outputs
// over operations of this thread from number `first` on, once. What lies before belongs to other
// units.
void visit_leaves(const std::vector<at::Tensor>& outputs, uint64_t first,
                  const std::function<void(const torch::autograd::Node*)>& leaf);

}  // namespace af::train
