// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/gradient_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace af::train {
namespace {

using torch::autograd::variable_list;

class ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(std::size_t index, std::shared_ptr<const std::function<void(std::size_t)>> ready)
      : index_(index), ready_(std::move(ready)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    (*ready_)(index_);
    return outputs;
  }

 private:
  std::size_t index_;
  std::shared_ptr<const std::function<void(std::size_t)>> ready_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters,
                             std::function<void(std::size_t)> ready) {
  const auto shared = std::make_shared<const std::function<void(std::size_t)>>(std::move(ready));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    const std::uintptr_t key = node->add_post_hook(std::make_unique<ReadyHook>(i, shared));
    remove_.emplace_back([node, key] { node->del_post_hook(key); });
  }
}

GradientHooks::~GradientHooks() {
  for (const auto& remove : remove_) remove();
}

}  // namespace af::train
