// SPDX-License-Identifier: Apache-2.0
#include "af/train/module_state.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/checkpoint/optimizer_key.h"

namespace af::train {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

Named tensors_of(const torch::nn::Module& model) {
  Named all;
  for (const auto& item : model.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

at::Tensor tensor_at(const State& state, const std::string& name, const at::Tensor& like) {
  const auto found = state.find(name);
  if (found == state.end()) throw Error::format("the state has no tensor {}", name);
  if (!found->value().isTensor()) throw Error::format("{} in the state is not a tensor", name);
  at::Tensor tensor = found->value().toTensor();
  if (tensor.sizes() != like.sizes())
    throw Error::format("{} has the shape {} in the state and {} in the model", name,
                        shape_text(tensor), shape_text(like));
  return tensor;
}

enum class Kind { adam, adamw, sgd };

Kind kind_of(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return Kind::adam;
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return Kind::adamw;
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return Kind::sgd;
  throw Error("the state of this optimizer cannot be saved: Adam, AdamW and SGD can");
}

at::Tensor copy_at(const State& state, const std::string& name, const at::Tensor& like) {
  return at::empty_like(like).copy_(tensor_at(state, name, like));
}

// AdamParamState and AdamWParamState are two types with the same members.
template <typename Adam>
State adam_state(const Adam& adam) {
  State one = make_state();
  one.insert("step", adam.step());
  one.insert("exp_avg", adam.exp_avg().detach());
  one.insert("exp_avg_sq", adam.exp_avg_sq().detach());
  if (adam.max_exp_avg_sq().defined()) one.insert("max_exp_avg_sq", adam.max_exp_avg_sq().detach());
  return one;
}

template <typename Adam>
std::unique_ptr<Adam> make_adam(const State& one, const std::string& name,
                                const at::Tensor& parameter) {
  const auto step = one.find("step");
  if (step == one.end() || !step->value().isInt())
    throw Error::format("the optimizer's state of {} has no step", name);
  auto adam = std::make_unique<Adam>();
  adam->step(step->value().toInt());
  adam->exp_avg(copy_at(one, "exp_avg", parameter));
  adam->exp_avg_sq(copy_at(one, "exp_avg_sq", parameter));
  if (one.contains("max_exp_avg_sq"))
    adam->max_exp_avg_sq(copy_at(one, "max_exp_avg_sq", parameter));
  return adam;
}

}  // namespace

State state_of(const torch::nn::Module& model) {
  State state = make_state();
  for (const auto& [name, tensor] : tensors_of(model)) state.insert(name, tensor.detach());
  return state;
}

void load_into(torch::nn::Module& model, const State& state) {
  const Named mine = tensors_of(model);
  Named found;
  for (const auto& [name, tensor] : mine) found.emplace_back(name, tensor_at(state, name, tensor));
  if (state.size() != mine.size())
    for (const auto& entry : state) {
      const std::string name = entry.key().toStringRef();
      bool known = false;
      for (const auto& item : mine) known = known || item.first == name;
      if (!known) throw Error::format("the state has {}, which the model does not", name);
    }
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < mine.size(); ++i) at::Tensor(mine[i].second).copy_(found[i].second);
}

State state_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& model) {
  const Kind kind = kind_of(optimizer);
  State state = make_state();
  const auto& all = optimizer.state();
  for (const auto& item : model.named_parameters()) {
    const auto found = all.find(key_of(all, item.value()));
    if (found == all.end()) continue;
    State one = make_state();
    switch (kind) {
      case Kind::adam:
        one = adam_state(static_cast<const torch::optim::AdamParamState&>(*found->second));
        break;
      case Kind::adamw:
        one = adam_state(static_cast<const torch::optim::AdamWParamState&>(*found->second));
        break;
      case Kind::sgd: {
        const auto& sgd = static_cast<const torch::optim::SGDParamState&>(*found->second);
        if (sgd.momentum_buffer().defined())
          one.insert("momentum_buffer", sgd.momentum_buffer().detach());
        break;
      }
    }
    state.insert(item.key(), one);
  }
  return state;
}

void load_into(torch::optim::Optimizer& optimizer, const torch::nn::Module& model,
               const State& state) {
  const Kind kind = kind_of(optimizer);
  const torch::NoGradGuard no_grad;
  auto& all = optimizer.state();
  for (const auto& item : model.named_parameters()) {
    const auto found = state.find(item.key());
    if (found == state.end()) continue;
    const at::Tensor& parameter = item.value();
    if (!found->value().isGenericDict())
      throw Error::format("the optimizer's state of {} is not a dict", item.key());
    const State one = found->value().toGenericDict();
    switch (kind) {
      case Kind::adam:
        all[key_of(all, parameter)] =
            make_adam<torch::optim::AdamParamState>(one, item.key(), parameter);
        break;
      case Kind::adamw:
        all[key_of(all, parameter)] =
            make_adam<torch::optim::AdamWParamState>(one, item.key(), parameter);
        break;
      case Kind::sgd: {
        auto sgd = std::make_unique<torch::optim::SGDParamState>();
        if (one.contains("momentum_buffer"))
          sgd->momentum_buffer(copy_at(one, "momentum_buffer", parameter));
        all[key_of(all, parameter)] = std::move(sgd);
        break;
      }
    }
  }
}

}  // namespace af::train
