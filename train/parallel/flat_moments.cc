// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/flat_moments.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/ranges.h>

#include "common/error.h"

namespace af::train {
namespace {

constexpr int64_t kGrain = 32768;   // elements that are worth a thread
constexpr int64_t kAlignment = 64;  // bytes: a cache line, the widest vector

std::string about(std::size_t number, const at::Tensor& parameter) {
  return fmt::format("parameter {} of the optimizer ([{}] {})", number,
                     fmt::join(parameter.sizes().begin(), parameter.sizes().end(), ", "),
                     c10::toString(parameter.scalar_type()));
}

bool lies_as(const at::Tensor& one, const at::Tensor& other) {
  return (one.is_contiguous() && other.is_contiguous()) || one.strides() == other.strides();
}

at::Tensor fitting_gradient(const at::Tensor& gradient, const at::Tensor& parameter,
                            std::size_t number) {
  if (gradient.layout() != at::kStrided)
    throw Error::format(
        "the gradient of {} is sparse: the flat optimizers take dense ones (or use torch::optim's)",
        about(number, parameter));
  const bool same = gradient.scalar_type() == parameter.scalar_type();
  if (same && (!parameter.is_cpu() || lies_as(gradient, parameter))) return gradient;
  return at::empty_like(parameter).copy_(gradient);
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_non_overlapping_and_dense() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

void for_each_range(const std::vector<int64_t>& counts,
                    const std::function<void(std::size_t, int64_t, int64_t)>& run) {
  std::vector<int64_t> starts;  // of each array in the row of all elements
  int64_t all = 0;
  for (const int64_t count : counts) {
    starts.push_back(all);
    all += count;
  }
  parallel_for(all, kGrain, [&](int64_t begin, int64_t end) {
    const auto after = std::upper_bound(starts.begin(), starts.end(), begin);
    auto array = static_cast<std::size_t>(after - starts.begin()) - 1;
    for (; array < counts.size() && starts[array] < end; ++array) {
      const int64_t from = std::max(begin - starts[array], int64_t{0});
      const int64_t to = std::min(end - starts[array], counts[array]);
      if (from < to) run(array, from, to - from);
    }
  });
}

void FlatMoments::allocate(const std::vector<std::pair<Slot*, at::Tensor>>& lacking,
                           std::size_t count) {
  using Kind = std::tuple<int, int, int>;
  std::map<Kind, std::vector<std::pair<Slot*, at::Tensor>>> kinds;
  for (const auto& one : lacking) {
    const at::Tensor& like = one.second;
    kinds[{static_cast<int>(like.scalar_type()), static_cast<int>(like.device().type()),
           like.device().index()}]
        .push_back(one);
  }
  for (const auto& [kind, all] : kinds) {
    const at::Tensor& first = all.front().second;
    const int64_t align = kAlignment / static_cast<int64_t>(first.element_size());
    int64_t elements = 0;
    std::vector<int64_t> offsets;
    for (const auto& [slot, parameter] : all) {
      offsets.push_back(elements);
      elements += (parameter.numel() + align - 1) / align * align;
    }
    for (std::size_t k = 0; k < count; ++k) {
      const at::Tensor flat = at::zeros({elements}, first.options().requires_grad(false));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto& [slot, parameter] = all[i];
        const at::Tensor part = flat.narrow(0, offsets[i], parameter.numel());
        slot->moments[k] =
            parameter.is_non_overlapping_and_dense()
                ? part.as_strided(parameter.sizes(), parameter.strides(), part.storage_offset())
                : part.view(parameter.sizes());
      }
    }
  }
}

void FlatMoments::connect(const Slot& slot, std::size_t number, const Layout& layout,
                          States& states, Entry& entry) {
  auto found = states.find(slot.key);
  const bool made = found == states.end();
  if (made) found = states.emplace(slot.key, layout.make()).first;
  entry.state = found->second.get();
  const auto held = made ? std::array<at::Tensor, 2>{} : layout.get(*entry.state);
  bool ours = !made;
  for (std::size_t k = 0; k < layout.count; ++k) {
    ours = ours && held[k].is_same(slot.moments[k]);
    entry.fresh = entry.fresh || !held[k].defined();
    if (held[k].defined() && held[k].sizes() != entry.parameter.sizes())
      throw Error::format("the optimizer's state of {} has another shape: [{}]",
                          about(number, entry.parameter),
                          fmt::join(held[k].sizes().begin(), held[k].sizes().end(), ", "));
  }
  if (ours) return;
  for (std::size_t k = 0; k < layout.count; ++k) {
    at::Tensor own = slot.moments[k];
    if (held[k].defined())
      own.copy_(held[k]);
    else
      own.zero_();
  }
  layout.set(*entry.state, slot.moments);
}

std::vector<FlatMoments::Entry> FlatMoments::gather(
    torch::optim::Optimizer& optimizer, const Layout& layout,
    const std::function<bool(std::size_t group)>& has_moments) {
  auto& states = optimizer.state();
  auto& groups = optimizer.param_groups();
  std::size_t parameters = 0;
  for (auto& group : groups) parameters += group.params().size();
  slots_.resize(parameters);

  std::vector<Entry> entries;
  std::vector<std::size_t> numbers;  // of the entries' slots
  std::vector<std::pair<Slot*, at::Tensor>> lacking;
  const std::unordered_set<const void*> unused = std::exchange(unused_, {});
  std::size_t number = 0;
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const at::Tensor& parameter : groups[group].params()) {
      const std::size_t mine = number++;
      Slot& slot = slots_[mine];
      if (slot.parameter != parameter.unsafeGetTensorImpl())
        slot = {parameter.unsafeGetTensorImpl(), key_of(states, parameter), {}};
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || unused.count(slot.parameter) != 0) continue;
      if (slot.moments[0].defined() && slot.moments[0].device() != parameter.device())
        throw Error::format("{} is on {} now, its moments are on {}: move a model before training",
                            about(mine, parameter), parameter.device().str(),
                            slot.moments[0].device().str());
      Entry entry;
      entry.group = group;
      entry.parameter = parameter;
      entry.gradient = fitting_gradient(gradient, parameter, mine);
      if (has_moments(group) && !slot.moments[0].defined()) lacking.emplace_back(&slot, parameter);
      entries.push_back(std::move(entry));
      numbers.push_back(mine);
    }
  allocate(lacking, layout.count);

  for (std::size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = entries[i];
    entry.plain = is_plain(entry.parameter) && lies_as(entry.gradient, entry.parameter);
    if (!has_moments(entry.group)) continue;
    const Slot& slot = slots_[numbers[i]];
    entry.moments = slot.moments;
    for (std::size_t k = 0; k < layout.count; ++k)
      entry.plain = entry.plain && lies_as(slot.moments[k], entry.parameter);
    connect(slot, numbers[i], layout, states, entry);
  }
  return entries;
}

}  // namespace af::train
