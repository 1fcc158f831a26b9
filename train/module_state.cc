// SPDX-License-Identifier: Apache-2.0
#include "af/train/module_state.h"

#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "common/error.h"

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

// Optimizer::state() is keyed by the TensorImpl: its address as text in libtorch 1.13, as a pointer
// in 2.x.
template <typename Map>
typename Map::key_type key_of(const Map&, const at::Tensor& parameter) {
  if constexpr (std::is_same_v<typename Map::key_type, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
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

State state_of(const torch::optim::Adam& optimizer, const torch::nn::Module& model) {
  State state = make_state();
  const auto& all = optimizer.state();
  for (const auto& item : model.named_parameters()) {
    const auto found = all.find(key_of(all, item.value()));
    if (found == all.end()) continue;
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*found->second);
    State one = make_state();
    one.insert("step", adam.step());
    one.insert("exp_avg", adam.exp_avg().detach());
    one.insert("exp_avg_sq", adam.exp_avg_sq().detach());
    state.insert(item.key(), one);
  }
  return state;
}

void load_into(torch::optim::Adam& optimizer, const torch::nn::Module& model, const State& state) {
  const torch::NoGradGuard no_grad;
  auto& all = optimizer.state();
  for (const auto& item : model.named_parameters()) {
    const auto found = state.find(item.key());
    if (found == state.end()) continue;
    const at::Tensor& parameter = item.value();
    if (!found->value().isGenericDict())
      throw Error::format("the optimizer's state of {} is not a dict", item.key());
    const State one = found->value().toGenericDict();
    const auto step = one.find("step");
    if (step == one.end() || !step->value().isInt())
      throw Error::format("the optimizer's state of {} has no step", item.key());
    auto adam = std::make_unique<torch::optim::AdamParamState>();
    adam->step(step->value().toInt());
    adam->exp_avg(at::empty_like(parameter).copy_(tensor_at(one, "exp_avg", parameter)));
    adam->exp_avg_sq(at::empty_like(parameter).copy_(tensor_at(one, "exp_avg_sq", parameter)));
    all[key_of(all, parameter)] = std::move(adam);
  }
}

}  // namespace af::train
