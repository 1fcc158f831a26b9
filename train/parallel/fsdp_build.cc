// SPDX-License-Identifier: Apache-2.0
// How a model becomes a sharded one.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/parallel/fsdp_agreement.h"
#include "train/parallel/fsdp_runtime.h"

namespace af::train {
namespace {

constexpr std::size_t kMostLeftInRoot = std::size_t{1} << 20;

std::string line_of(const UnitParameter& one) {
  return fmt::format("parameter {} [{}] {}{}", fmt::join(one.names, " = "),
                     fmt::join(one.sizes, ", "), c10::toString(one.parameter.scalar_type()),
                     one.parameter.requires_grad() ? "" : " without gradient");
}

std::vector<std::string> some_names(const torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    names.push_back(item.key());
    if (names.size() == 8) break;
  }
  return names;
}

}  // namespace

FsdpRuntime::FsdpRuntime(torch::nn::Module& model, Communicator& world, FullyShardedOptions options)
    : model_(model), world_(world), options_(std::move(options)) {
  const at::NoGradGuard no_grad;
  find_units();
  std::vector<int> unit_of_parameter;
  std::vector<UnitParameter> parameters = find_parameters(unit_of_parameter);
  if (options_.device) {
    device_ = *options_.device;
  } else if (!parameters.empty()) {
    device_ = parameters.front().parameter.device();
  }
  leave_small_units(parameters, unit_of_parameter);
  make_units(std::move(parameters), unit_of_parameter);
  require_same_model();

  std::vector<std::size_t> bytes;
  for (const FsdpUnit& unit : units_) bytes.push_back(unit.bytes());
  bytes[kRoot] = 0;  // it has memory of its own
  slots_ = UnitSlots(bytes);
  slot_states_.resize(slots_.slots());
  for (std::size_t i = 0; i < slots_.slots(); ++i)
    slot_states_[i].memory = world_.allocate(slots_.bytes_of(static_cast<int>(i)));
  if (!units_[kRoot].empty()) root_memory_ = world_.allocate(units_[kRoot].bytes());
  gathered_versions_.resize(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) shard(static_cast<int>(i));

  for (const at::Tensor& buffer : model_.buffers())
    if (buffer.defined() && buffer.numel() > 0) {
      if (buffer.device() != device_)
        throw Error::format("a buffer of the model is on {} and its shards on {}: move the buffers",
                            buffer.device().str(), device_.str());
      buffers_of_model_.push_back(buffer);
    }
  broadcast_buffers();
}

void FsdpRuntime::find_units() {
  unit_of_[&model_] = kRoot;
  units_.reserve(options_.units.size() + 1);
  std::map<std::string, const torch::nn::Module*> modules;
  for (const auto& item : model_.named_modules("", /*include_self=*/false))
    modules[item.key()] = item.value().get();
  int next = kRoot + 1;
  for (const std::string& name : options_.units) {
    const auto found = modules.find(name);
    if (found == modules.end())
      throw Error::format("unit \"{}\" is no submodule of the model, which has {} …", name,
                          fmt::join(some_names(model_), ", "));
    // A module that is at two places is one unit.
    if (unit_of_.emplace(found->second, next).second) ++next;
  }
}

// Each parameter once, with the innermost unit it is in; the root if it is in several.
std::vector<UnitParameter> FsdpRuntime::find_parameters(std::vector<int>& unit_of_parameter) {
  std::vector<UnitParameter> parameters;
  std::map<const void*, std::size_t> known;
  std::map<const void*, std::string> storages;
  const std::function<void(const torch::nn::Module&, const std::string&, int)> visit =
      [&](const torch::nn::Module& module, const std::string& prefix, int unit) {
        if (const auto found = unit_of_.find(&module); found != unit_of_.end())
          unit = found->second;
        for (const auto& item : module.named_parameters(/*recurse=*/false)) {
          const at::Tensor& parameter = item.value();
          if (!parameter.defined()) continue;
          const std::string name = prefix + item.key();
          const auto [at, fresh] =
              known.emplace(parameter.unsafeGetTensorImpl(), parameters.size());
          if (!fresh) {
            parameters[at->second].names.push_back(name);
            int& owner = unit_of_parameter[at->second];
            if (owner != unit) owner = kRoot;
            continue;
          }
          const auto [other, own] = storages.emplace(parameter.data_ptr(), name);
          if (!own && parameter.numel() > 0)
            throw Error::format(
                "parameters {} and {} share memory but are two tensors: give both modules the "
                "same tensor",
                other->second, name);
          parameters.push_back({{name}, parameter, parameter.sizes().vec(), {}, false, false, {}});
          unit_of_parameter.push_back(unit);
        }
        for (const auto& child : module.named_children())
          visit(*child.value(), prefix + child.key() + ".", unit);
      };
  visit(model_, "", kRoot);
  return parameters;
}

void FsdpRuntime::leave_small_units(const std::vector<UnitParameter>& parameters,
                                    std::vector<int>& unit_of_parameter) {
  std::vector<std::size_t> bytes(unit_of_.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    bytes[static_cast<std::size_t>(unit_of_parameter[i])] += parameters[i].parameter.nbytes();
  std::size_t left = 0;
  std::vector<bool> small(bytes.size());
  for (std::size_t u = 1; u < bytes.size(); ++u) {
    small[u] = bytes[u] == 0 ||
               (bytes[u] < options_.smallest_unit_bytes && left + bytes[u] <= kMostLeftInRoot);
    if (small[u]) left += bytes[u];
  }
  for (int& unit : unit_of_parameter)
    if (small[static_cast<std::size_t>(unit)]) unit = kRoot;
  for (auto& [module, unit] : unit_of_)
    if (small[static_cast<std::size_t>(unit)]) unit = kRoot;
}

void FsdpRuntime::make_units(std::vector<UnitParameter> parameters,
                             const std::vector<int>& unit_of_parameter) {
  std::vector<ShardedParameter> shapes;
  std::vector<DataType> types;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& one = parameters[i].parameter;
    types.push_back(
        shard_type(parameters[i].names.front(), one.scalar_type(), one.requires_grad()));
    shapes.push_back({static_cast<std::size_t>(unit_of_parameter[i]), one.numel(),
                      static_cast<int>(one.scalar_type()),
                      static_cast<std::size_t>(one.element_size()), one.requires_grad()});
  }
  const ShardLayout layout = plan_shards(shapes, unit_of_.size(), world_.world_size());
  shards_ = world_.allocate(std::max<std::size_t>(layout.shard_bytes, 1));
  std::vector<std::string> names(unit_of_.size());
  for (const auto& item : model_.named_modules("", /*include_self=*/false))
    if (const auto found = unit_of_.find(item.value().get()); found != unit_of_.end())
      if (names[static_cast<std::size_t>(found->second)].empty())
        names[static_cast<std::size_t>(found->second)] = item.key();
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    std::vector<UnitGroup> groups;
    for (const GroupLayout& one : layout.units[u].groups) {
      UnitGroup& group = groups.emplace_back();
      group.layout = one;
      group.type = types[one.parameters.front()];
      for (const std::size_t i : one.parameters) group.parameters.push_back(parameters[i]);
    }
    units_.emplace_back(names[u], std::move(groups), layout.units[u].bytes, device_, shards_,
                        world_.world_size());
  }
}

void FsdpRuntime::require_same_model() const {
  std::vector<std::string> lines;
  // The root last: what is in no unit here may be in one there, which says more.
  for (std::size_t u = 1; u <= units_.size(); ++u) {
    const FsdpUnit& unit = units_[u % units_.size()];
    lines.push_back(u == units_.size() ? "the root" : "unit " + unit.name());
    for (const UnitGroup& group : unit.groups())
      for (const UnitParameter& one : group.parameters) lines.push_back(line_of(one));
  }
  require_same_lines(world_, lines, "other units or parameters", device_);
}

// The values are rank 0's. Unit by unit, so that the model's memory goes while the shards fill.
void FsdpRuntime::shard(int unit) {
  FsdpUnit& one = unit_at(unit);
  if (one.empty()) return;
  char* memory = unit == kRoot ? static_cast<char*>(root_memory_.data())
                               : static_cast<char*>(slot_states_[0].memory.data());
  one.fill(memory);
  world_.broadcast(memory, memory, one.bytes(), DataType::u8, /*root=*/0, call_options())
      .synchronize();
  for (UnitGroup& group : one.groups())
    group.shard.detach().copy_(
        group.whole.narrow(0, group.layout.count * world_.rank(), group.layout.count));
  one.attach(memory);
  add_hooks(unit);
  one.detach();
}

// While the parameters are whole: autograd's accumulation nodes take their shapes from them.
void FsdpRuntime::add_hooks(int unit) {
  auto& groups = unit_at(unit).groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].layout.trained) continue;
    for (std::size_t i = 0; i < groups[g].parameters.size(); ++i) {
      const std::size_t index = hooked_.size();
      hooked_.push_back({unit, g, i});
      hooked_of_[hooks_.add(groups[g].parameters[i].parameter,
                            [this, index] { on_gradient(index); })] = index;
    }
  }
}

FsdpRuntime::~FsdpRuntime() {
  forget_reductions();
  for (const SlotState& slot : slot_states_)
    for (const Work& work : slot.gathers) try {
        work.synchronize();
      } catch (const CommunicatorError&) {  // NOLINT(bugprone-empty-catch): likewise
      }
  for (FsdpUnit& unit : units_) unit.detach();
}

}  // namespace af::train
