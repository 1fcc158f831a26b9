// SPDX-License-Identifier: Apache-2.0
#include "af/train/flat_optimizer.h"

#include <ATen/Functions.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "common/error.h"
#include "train/parallel/flat_kernels.h"
#include "train/parallel/flat_moments.h"

namespace af::train {
namespace {

using Entry = FlatMoments::Entry;
using torch::optim::OptimizerParamState;
using Tensors = std::vector<at::Tensor>;

InstructionSet widest() {
  static const InstructionSet set = instruction_sets().back();
  return set;
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const at::AutoGradMode enable(true);
  return closure();
}

// Writing through a pointer goes past autograd, which tells by the version whether a tensor that a
// graph needs is still what it was.
void mark_changed(const at::Tensor& parameter) {
  if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Calls run(entry, parameter, gradient, first, second, count) with pointers to ranges of the plain
// entries; `Count` is how many moments there are.
template <typename Run>
void on_plain(const std::vector<Entry>& entries, const Run& run) {
  std::vector<std::size_t> plain;
  std::vector<int64_t> counts;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries[i].plain) {
      plain.push_back(i);
      counts.push_back(entries[i].parameter.numel());
    }
  for_each_range(counts, [&](std::size_t array, int64_t offset, int64_t count) {
    const Entry& entry = entries[plain[array]];
    const auto at = [&](auto type, const at::Tensor& tensor) {
      using T = decltype(type);
      return tensor.defined() ? data<T>(tensor) + offset : nullptr;
    };
    const auto call = [&](auto type) {
      run(plain[array], at(type, entry.parameter), at(type, entry.gradient),
          at(type, entry.moments[0]), at(type, entry.moments[1]), static_cast<std::size_t>(count));
    };
    if (entry.parameter.scalar_type() == at::kFloat)
      call(float{});
    else
      call(double{});
  });
  for (const std::size_t i : plain) mark_changed(entries[i].parameter);
}

// Those that are not plain, as lists of tensors: by what ATen's list operations want to be the same
// in a list, and by `same`, what else is.
struct Lists {
  std::size_t first = 0;  // number of an entry of the list
  Tensors parameters, gradients, first_moments, second_moments;
};
std::vector<Lists> other_lists(const std::vector<Entry>& entries,
                               const std::function<int64_t(std::size_t)>& same) {
  std::map<std::tuple<std::size_t, int64_t, int, int, int>, Lists> lists;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (entry.plain) continue;
    Lists& list = lists[{entry.group, same(i), static_cast<int>(entry.parameter.scalar_type()),
                         static_cast<int>(entry.parameter.device().type()),
                         entry.parameter.device().index()}];
    if (list.parameters.empty()) list.first = i;
    list.parameters.push_back(entry.parameter);
    list.gradients.push_back(entry.gradient);
    if (entry.moments[0].defined()) list.first_moments.push_back(entry.moments[0]);
    if (entry.moments[1].defined()) list.second_moments.push_back(entry.moments[1]);
  }
  std::vector<Lists> all;
  all.reserve(lists.size());
  for (auto& [key, list] : lists) all.push_back(std::move(list));
  return all;
}

// The gradients times the factor and with L2 decay; not the parameters' own tensors any more where
// that changes them.
Tensors effective_gradients(const Lists& list, double factor, double l2) {
  Tensors gradients = list.gradients;
  if (factor != 1) gradients = at::_foreach_mul(gradients, factor);
  if (l2 != 0) gradients = at::_foreach_add(gradients, list.parameters, l2);
  return gradients;
}

void adam_lists(const AdamPass& pass, const Lists& list) {
  const Tensors gradients =
      effective_gradients(list, pass.factor, pass.decoupled ? 0 : pass.weight_decay);
  if (pass.decoupled && pass.weight_decay != 0)
    at::_foreach_mul_(list.parameters, 1 - pass.lr * pass.weight_decay);
  at::_foreach_mul_(list.first_moments, pass.beta1);
  at::_foreach_add_(list.first_moments, gradients, 1 - pass.beta1);
  at::_foreach_mul_(list.second_moments, pass.beta2);
  at::_foreach_addcmul_(list.second_moments, gradients, gradients, 1 - pass.beta2);
  Tensors denominators = at::_foreach_sqrt(list.second_moments);
  at::_foreach_div_(denominators, std::sqrt(pass.bias_correction2));
  at::_foreach_add_(denominators, pass.eps);
  at::_foreach_addcdiv_(list.parameters, list.first_moments, denominators,
                        -pass.lr / pass.bias_correction1);
}

void sgd_lists(const SgdPass& pass, const Lists& list) {
  Tensors gradients = effective_gradients(list, pass.factor, pass.weight_decay);
  if (pass.momentum != 0) {
    if (pass.first) {
      for (std::size_t i = 0; i < gradients.size(); ++i)
        at::Tensor(list.first_moments[i]).copy_(gradients[i]);
    } else {
      at::_foreach_mul_(list.first_moments, pass.momentum);
      at::_foreach_add_(list.first_moments, gradients, 1 - pass.dampening);
    }
    gradients = pass.nesterov ? at::_foreach_add(gradients, list.first_moments, pass.momentum)
                              : list.first_moments;
  }
  at::_foreach_add_(list.parameters, gradients, -pass.lr);
}

template <typename State>
FlatMoments::Layout adam_layout() {
  FlatMoments::Layout layout;
  layout.count = 2;
  layout.make = [] { return std::make_unique<State>(); };
  layout.get = [](const OptimizerParamState& state) -> std::array<at::Tensor, 2> {
    const auto& adam = static_cast<const State&>(state);
    if (adam.max_exp_avg_sq().defined())
      throw Error(
          "the optimizer's state is of amsgrad, which the flat optimizers do not have: use "
          "torch::optim's");
    return {adam.exp_avg(), adam.exp_avg_sq()};
  };
  layout.set = [](OptimizerParamState& state, const std::array<at::Tensor, 2>& moments) {
    static_cast<State&>(state).exp_avg(moments[0]);
    static_cast<State&>(state).exp_avg_sq(moments[1]);
  };
  return layout;
}

template <typename Options>
void refuse_amsgrad(const torch::optim::OptimizerOptions& options) {
  if (static_cast<const Options&>(options).amsgrad())
    throw Error("the flat optimizers have no amsgrad: use torch::optim's with it");
}

// Adam and AdamW have options and states of types of their own, with the same members.
template <typename Options, typename State>
void adam_step(torch::optim::Optimizer& optimizer, FlatMoments& moments, double factor,
               bool decoupled) {
  static const FlatMoments::Layout layout = adam_layout<State>();
  const auto& groups = optimizer.param_groups();
  for (const auto& group : groups) refuse_amsgrad<Options>(group.options());
  const std::vector<Entry> entries = moments.gather(optimizer, layout);
  std::vector<AdamPass> passes(entries.size());
  std::vector<int64_t> steps(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& state = static_cast<State&>(*entries[i].state);
    state.step(steps[i] = state.step() + 1);
    if (i > 0 && steps[i] == steps[i - 1] && entries[i].group == entries[i - 1].group) {
      passes[i] = passes[i - 1];
      continue;
    }
    const auto& options = static_cast<const Options&>(groups[entries[i].group].options());
    const auto [beta1, beta2] = options.betas();
    const auto step = static_cast<double>(steps[i]);
    passes[i] = {factor,
                 options.lr(),
                 beta1,
                 beta2,
                 options.eps(),
                 options.weight_decay(),
                 decoupled,
                 1 - std::pow(beta1, step),
                 1 - std::pow(beta2, step)};
  }
  on_plain(entries, [&](std::size_t i, auto* parameter, auto* gradient, auto* first, auto* second,
                        std::size_t count) {
    adam_pass(widest(), passes[i], parameter, gradient, first, second, count);
  });
  for (const Lists& list : other_lists(entries, [&](std::size_t i) { return steps[i]; }))
    adam_lists(passes[list.first], list);
}

FlatMoments::Layout sgd_layout() {
  using torch::optim::SGDParamState;
  FlatMoments::Layout layout;
  layout.count = 1;
  layout.make = [] { return std::make_unique<SGDParamState>(); };
  layout.get = [](const OptimizerParamState& state) -> std::array<at::Tensor, 2> {
    return {static_cast<const SGDParamState&>(state).momentum_buffer(), {}};
  };
  layout.set = [](OptimizerParamState& state, const std::array<at::Tensor, 2>& moments) {
    static_cast<SGDParamState&>(state).momentum_buffer(moments[0]);
  };
  return layout;
}

void sgd_step(torch::optim::Optimizer& optimizer, FlatMoments& moments, double factor) {
  using torch::optim::SGDOptions;
  static const FlatMoments::Layout layout = sgd_layout();
  const auto& groups = optimizer.param_groups();
  const auto options_of = [&](std::size_t group) -> const SGDOptions& {
    return static_cast<const SGDOptions&>(groups[group].options());
  };
  const std::vector<Entry> entries = moments.gather(
      optimizer, layout, [&](std::size_t group) { return options_of(group).momentum() != 0; });
  std::vector<SgdPass> passes(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const SGDOptions& options = options_of(entries[i].group);
    passes[i] = {factor,
                 options.lr(),
                 options.momentum(),
                 options.dampening(),
                 options.weight_decay(),
                 options.nesterov(),
                 entries[i].fresh};
  }
  on_plain(entries, [&](std::size_t i, auto* parameter, auto* gradient, auto* buffer, auto*,
                        std::size_t count) {
    sgd_pass(widest(), passes[i], parameter, gradient, buffer, count);
  });
  for (const Lists& list : other_lists(entries, [&](std::size_t i) { return passes[i].first; }))
    sgd_lists(passes[list.first], list);
}

}  // namespace

FlatOptimizer::FlatOptimizer() : moments_(std::make_unique<FlatMoments>()) {}
FlatOptimizer::~FlatOptimizer() = default;

void FlatOptimizer::use(const GradientBuckets& all) {
  scale_gradients(all.scale);
  std::unordered_set<const void*> unused;
  for (const GradientBucket& bucket : all.buckets)
    for (const GradientSlot& slot : bucket.slots)
      if (!slot.used) unused.insert(slot.parameter.unsafeGetTensorImpl());
  moments_->pass_over(std::move(unused));
}

FlatAdam::FlatAdam(std::vector<torch::optim::OptimizerParamGroup> groups,
                   const torch::optim::AdamOptions& defaults)
    : Adam(std::move(groups), defaults) {
  refuse_amsgrad<torch::optim::AdamOptions>(defaults);
}
FlatAdam::FlatAdam(std::vector<at::Tensor> parameters, const torch::optim::AdamOptions& defaults)
    : Adam(std::move(parameters), defaults) {
  refuse_amsgrad<torch::optim::AdamOptions>(defaults);
}

at::Tensor FlatAdam::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  adam_step<torch::optim::AdamOptions, torch::optim::AdamParamState>(
      *this, moments(), gradient_factor(), /*decoupled=*/false);
  reset_gradient_factor();
  return loss;
}

FlatAdamW::FlatAdamW(std::vector<torch::optim::OptimizerParamGroup> groups,
                     const torch::optim::AdamWOptions& defaults)
    : AdamW(std::move(groups), defaults) {
  refuse_amsgrad<torch::optim::AdamWOptions>(defaults);
}
FlatAdamW::FlatAdamW(std::vector<at::Tensor> parameters, const torch::optim::AdamWOptions& defaults)
    : AdamW(std::move(parameters), defaults) {
  refuse_amsgrad<torch::optim::AdamWOptions>(defaults);
}

at::Tensor FlatAdamW::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  adam_step<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      *this, moments(), gradient_factor(), /*decoupled=*/true);
  reset_gradient_factor();
  return loss;
}

FlatSgd::FlatSgd(std::vector<torch::optim::OptimizerParamGroup> groups,
                 const torch::optim::SGDOptions& defaults)
    : SGD(std::move(groups), defaults) {}
FlatSgd::FlatSgd(std::vector<at::Tensor> parameters, const torch::optim::SGDOptions& defaults)
    : SGD(std::move(parameters), defaults) {}

at::Tensor FlatSgd::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  sgd_step(*this, moments(), gradient_factor());
  reset_gradient_factor();
  return loss;
}

}  // namespace af::train
