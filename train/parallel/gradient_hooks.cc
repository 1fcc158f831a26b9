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
  explicit ReadyHook(std::function<void()> ready) : ready_(std::move(ready)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    ready_();
    return outputs;
  }

 private:
  std::function<void()> ready_;
};

}  // namespace

const torch::autograd::Node* GradientHooks::add(const at::Tensor& parameter,
                                                std::function<void()> ready) {
  const auto node = torch::autograd::impl::grad_accumulator(parameter);
  const std::uintptr_t key = node->add_post_hook(std::make_unique<ReadyHook>(std::move(ready)));
  remove_.emplace_back([node, key] { node->del_post_hook(key); });
  return node.get();
}

GradientHooks::~GradientHooks() {
  for (const auto& remove : remove_) remove();
}

}  // namespace af::train
