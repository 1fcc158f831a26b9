// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/state_broadcast.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace af::train {

using nlohmann::json;

namespace {

// The state without the tensors' contents, which are put into `tensors` in this order.
json outline(const State& state, std::vector<at::Tensor>& tensors) {
  json entries = json::array();
  for (const auto& entry : state) {
    const std::string& key = entry.key().toStringRef();
    const c10::IValue& value = entry.value();
    if (value.isTensor()) {
      const at::Tensor tensor = value.toTensor().detach();
      tensors.push_back(tensor);
      entries.push_back(
          {key, "tensor", static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
    } else if (value.isGenericDict()) {
      entries.push_back({key, "dict", outline(value.toGenericDict(), tensors)});
    } else if (value.isInt()) {
      entries.push_back({key, "int", value.toInt()});
    } else if (value.isBool()) {
      entries.push_back({key, "bool", value.toBool()});
    } else if (value.isString()) {
      entries.push_back({key, "string", value.toStringRef()});
    } else if (value.isNone()) {
      entries.push_back({key, "none"});
    } else {
      throw Error::format("the state's value {} is a {}, which cannot be sent to other ranks", key,
                          value.tagKind());
    }
  }
  return entries;
}

// And back, with tensors that are to be filled.
State from_outline(const json& entries, at::Device device, std::vector<at::Tensor>& tensors) {
  State state = make_state();
  for (const json& entry : entries) {
    const auto key = entry.at(0).get<std::string>();
    const auto kind = entry.at(1).get<std::string>();
    if (kind == "tensor") {
      const auto type = static_cast<at::ScalarType>(entry.at(2).get<int>());
      tensors.push_back(at::empty(entry.at(3).get<std::vector<int64_t>>(),
                                  at::TensorOptions(type).device(device)));
      state.insert(key, tensors.back());
    } else if (kind == "dict") {
      state.insert(key, from_outline(entry.at(2), device, tensors));
    } else if (kind == "int") {
      state.insert(key, entry.at(2).get<int64_t>());
    } else if (kind == "bool") {
      state.insert(key, entry.at(2).get<bool>());
    } else if (kind == "string") {
      state.insert(key, entry.at(2).get<std::string>());
    } else {
      state.insert(key, c10::IValue());
    }
  }
  return state;
}

void broadcast(Communicator& world, const at::Tensor& tensor, int root) {
  if (tensor.nbytes() == 0) return;
  world.broadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), DataType::u8, root)
      .synchronize();
}

}  // namespace

State broadcast_state(Communicator& world, int root, const State* mine, bool wanted,
                      at::Device device) {
  const at::NoGradGuard no_grad;
  const bool giver = world.rank() == root;
  std::vector<at::Tensor> tensors;
  std::string text;
  if (giver) text = outline(*mine, tensors).dump();

  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device);
  broadcast(world, size, root);
  text.resize(static_cast<size_t>(size.item<int64_t>()));
  at::Tensor bytes =
      at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte).to(device);
  broadcast(world, bytes, root);
  const at::Tensor plain = bytes.cpu();
  const std::string outlined(static_cast<const char*>(plain.data_ptr()),
                             static_cast<size_t>(plain.numel()));

  State state = make_state();
  if (giver) {
    for (const at::Tensor& tensor : tensors) broadcast(world, tensor.to(device).contiguous(), root);
    return state;
  }
  state = from_outline(json::parse(outlined), wanted ? device : at::Device(at::kMeta), tensors);
  at::Tensor scratch;  // where a rank that has the state already lets it pass
  for (const at::Tensor& tensor : tensors) {
    const auto needed = static_cast<int64_t>(tensor.nbytes());
    if (!wanted && (!scratch.defined() || scratch.numel() < needed))
      scratch = at::empty({needed}, at::TensorOptions(at::kByte).device(device));
    broadcast(world, wanted ? tensor : scratch.narrow(0, 0, needed), root);
  }
  return wanted ? state : make_state();
}

}  // namespace af::train
