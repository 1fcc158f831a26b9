// SPDX-License-Identifier: Apache-2.0
// What a DataParallel keeps: into a state and out of it.
#include <ATen/Functions.h>

#include <filesystem>
#include <utility>

#include "af/train/module_state.h"
#include "af/train/random_state.h"
#include "common/error.h"
#include "train/parallel/data_parallel_impl.h"

namespace af::train {
namespace {

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions(at::kLong));
}

std::vector<int64_t> to_vector(const at::Tensor& values) {
  const at::Tensor plain = values.to(at::kCPU, at::kLong).contiguous();
  return {plain.data_ptr<int64_t>(), plain.data_ptr<int64_t>() + plain.numel()};
}

State to_state(const OrderState& order) {
  State state = make_state();
  for (const auto& [name, number] : order.numbers) state.insert(name, number);
  for (const auto& [name, list] : order.lists) state.insert(name, to_tensor(list));
  return state;
}

OrderState to_order_state(const State& state) {
  OrderState order;
  for (const auto& entry : state) {
    const std::string& name = entry.key().toStringRef();
    if (entry.value().isInt())
      order.numbers[name] = entry.value().toInt();
    else
      order.lists[name] = to_vector(entry.value().toTensor());
  }
  return order;
}

}  // namespace

State DataParallel::Impl::collect(Scope scope) const {
  State state = make_state();
  state.insert("step", steps);
  state.insert("model", state_of(model));
  for (const Kept& one : kept) state.insert(one.name, one.get(scope));
  return state;
}

void DataParallel::Impl::apply(const State& state, bool of_program) {
  const auto at = [&](const std::string& name) {
    const auto found = state.find(name);
    if (found == state.end()) throw Error::format("the state has no {}", name);
    return found->value();
  };
  try {
    steps = at("step").toInt();
    load_into(model, at("model").toGenericDict());
    for (const Kept& one : kept)
      if (of_program || !one.of_program) one.set(at(one.name));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // a value of another kind, a key that is missing
    const std::string text = error.what();
    throw Error::format("the state does not fit: {}", text.substr(0, text.find('\n')));
  }
}

std::string DataParallel::Impl::kept_names() const {
  std::string names;
  for (const Kept& one : kept) names += one.name + ";";
  return names;
}

void DataParallel::keep(const std::string& name, torch::optim::Optimizer& optimizer) {
  (void)state_of(optimizer, impl_->model);  // throws for one of another kind
  impl_->kept.push_back({name, false,
                         [this, &optimizer](auto) { return state_of(optimizer, impl_->model); },
                         [this, &optimizer](const c10::IValue& value) {
                           load_into(optimizer, impl_->model, value.toGenericDict());
                         }});
}

void DataParallel::keep(const std::string& name, DataOrder& dealer) {
  if (impl_->dealer != nullptr) throw Error("DataParallel: a second dealer is kept");
  impl_->dealer = &dealer;
  if (impl_->fixed != nullptr) dealer.set_world(impl_->fixed->rank(), impl_->fixed->world_size());
  impl_->kept.push_back({name, false,
                         [&dealer](Impl::Scope scope) {
                           return to_state(dealer.save(scope == Impl::Scope::to_save
                                                           ? DataOrder::Scope::to_save
                                                           : DataOrder::Scope::to_send));
                         },
                         [&dealer](const c10::IValue& value) {
                           dealer.restore(to_order_state(value.toGenericDict()));
                         }});
}

void DataParallel::keep(const std::string& name, const at::Tensor& values) {
  impl_->kept.push_back({name, true, [values](auto) { return c10::IValue(values.detach()); },
                         [name, values](const c10::IValue& value) {
                           const at::NoGradGuard no_grad;
                           const at::Tensor saved = value.toTensor();
                           if (saved.sizes() != values.sizes())
                             throw Error::format("{} has another shape in the state", name);
                           at::Tensor(values.detach()).copy_(saved);
                         }});
}

void DataParallel::keep(const std::string& name, int64_t& value) {
  impl_->kept.push_back({name, true, [&value](auto) { return c10::IValue(value); },
                         [&value](const c10::IValue& saved) { value = saved.toInt(); }});
}

void DataParallel::keep(const std::string& name, std::function<c10::IValue()> get,
                        std::function<void(const c10::IValue&)> set) {
  impl_->kept.push_back(
      {name, false, [get = std::move(get)](auto) { return get(); }, std::move(set)});
}

void DataParallel::save_with(BackgroundSaver& saver) {
  impl_->saver = &saver;
}

State DataParallel::state() const {
  return impl_->collect(Impl::Scope::to_save);
}

void DataParallel::load(const State& state) {
  Impl& impl = *impl_;
  impl.apply(state, /*of_program=*/true);
  restore_random(state, impl.seed(), impl.steps, impl.rank(), impl.device);
}

std::optional<Checkpoint> DataParallel::resume() {
  if (impl_->saver == nullptr) return std::nullopt;
  for (;;) {
    const auto found = impl_->saver->directory().find_newest();
    if (!found) return std::nullopt;
    try {
      load(read_state(found->path / "state.pt"));
      return found;
    } catch (const Error& error) {
      // A rank that trains already may have removed it meanwhile, for newer ones.
      if (std::filesystem::exists(found->path))
        throw Error::format("checkpoint {}: {}", found->path.string(), error.what());
    }
  }
}

}  // namespace af::train
