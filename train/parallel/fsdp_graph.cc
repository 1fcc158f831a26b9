// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_graph.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <unordered_set>

namespace af::train {
namespace {

// Accumulation nodes come first in a backward pass whenever they are ready, by this number.
constexpr uint64_t kLeaf = std::numeric_limits<uint64_t>::max();

}  // namespace

uint64_t next_operation() {
  return at::sequence_number::peek();
}

void visit_leaves(const std::vector<at::Tensor>& outputs, uint64_t first,
                  const std::function<void(const torch::autograd::Node*)>& leaf) {
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open;
  const auto come_to = [&](const torch::autograd::Node* node) {
    if (node == nullptr || node->sequence_nr() < first || !seen.insert(node).second) return;
    if (node->sequence_nr() == kLeaf)
      leaf(node);
    else
      open.push_back(node);
  };
  for (const at::Tensor& output : outputs) come_to(output.grad_fn().get());
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) come_to(edge.function.get());
  }
}

}  // namespace af::train
