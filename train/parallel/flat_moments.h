// SPDX-License-Identifier: Apache-2.0
// What a flat optimizer keeps of each parameter, and the way of a step over all of them.
#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "train/checkpoint/optimizer_key.h"

namespace af::train {

// Where the moments of an optimizer are. Its own state (Optimizer::state()) has views of them.
class FlatMoments {
 public:
  using States = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

  // One parameter that takes part in the step.
  struct Entry {
    std::size_t group = 0;  // number of the parameter's group
    at::Tensor parameter;
    at::Tensor gradient;  // of the parameter's type
    std::array<at::Tensor, 2> moments;
    torch::optim::OptimizerParamState* state = nullptr;
    bool fresh = false;  // its moments have no value yet (they are zero)
    // All of them lie in host memory in the same way, without gaps: a loop over raw memory will do.
    bool plain = false;
  };

  // How an optimizer's kind of state holds the moments.
  struct Layout {
    std::size_t count = 0;  // of moments
    std::function<std::unique_ptr<torch::optim::OptimizerParamState>()> make;
    // References into the state; undefined tensors where there is no value.
    std::function<std::array<at::Tensor, 2>(const torch::optim::OptimizerParamState&)> get;
    std::function<void(torch::optim::OptimizerParamState&, const std::array<at::Tensor, 2>&)> set;
  };

  // The parameters that have a gradient, with moments and state; makes what is missing, and takes
  // over moments that a checkpoint has put into the state. Groups for which `has_moments` is false
  // have neither. Throws af::Error, before any parameter has changed.
  std::vector<Entry> gather(
      torch::optim::Optimizer& optimizer, const Layout& layout,
      const std::function<bool(std::size_t group)>& has_moments = [](std::size_t) { return true; });

  // Parameters (their TensorImpl) that the next gather() passes over.
  void pass_over(std::unordered_set<const void*> parameters) { unused_ = std::move(parameters); }

 private:
  struct Slot {
    at::TensorImpl* parameter = nullptr;
    States::key_type key{};
    std::array<at::Tensor, 2> moments;
  };
  void allocate(const std::vector<std::pair<Slot*, at::Tensor>>& lacking, std::size_t count);
  // Makes the moments of the state the slot's own.
  void connect(const Slot& slot, std::size_t number, const Layout& layout, States& states,
               Entry& entry);

  std::vector<Slot> slots_;  // in the order of groups and parameters
  std::unordered_set<const void*> unused_;
};

// f32 or f64 in host memory without gaps.
bool is_plain(const at::Tensor& tensor);

// run(begin, end) over parts of [0, count), at once with as many threads as torch has; a part has
// at least `grain`.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& run);

// The same over ranges of arrays with so many elements each: run(array, offset, elements).
void for_each_range(const std::vector<int64_t>& counts,
                    const std::function<void(std::size_t, int64_t, int64_t)>& run);

}  // namespace af::train
