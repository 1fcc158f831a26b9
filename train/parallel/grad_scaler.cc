// SPDX-License-Identifier: Apache-2.0
#include "af/train/grad_scaler.h"

#include <ATen/Functions.h>

#include <cmath>

#include "af/train/flat_optimizer.h"
#include "af/train/gradient_norm.h"
#include "common/error.h"

namespace af::train {
namespace {

// Losses and gradients are f32 at least: a scale beyond would be infinite there.
constexpr double kMost = 0x1p127;
// The smallest number of f16 is 2^-24, the largest 2^16: gradients that overflow at this scale do
// so in f32 too.
constexpr double kLeast = 0x1p-60;

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  if (!(options.init_scale > 0) || !std::isfinite(options.init_scale))
    throw Error::format("GradScaler: init_scale={}: a positive number", options.init_scale);
  if (!(options.growth_factor > 1))
    throw Error::format("GradScaler: growth_factor={}: more than 1", options.growth_factor);
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1))
    throw Error::format("GradScaler: backoff_factor={}: between 0 and 1", options.backoff_factor);
  if (options.growth_interval < 1)
    throw Error::format("GradScaler: growth_interval={}: at least 1", options.growth_interval);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss * scale_ : loss;
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer, Communicator* shards) {
  if (!options_.enabled) return;
  if (seen_.count(&optimizer) != 0)
    throw Error("GradScaler: unscale() a second time, or behind step(), before update()");
  const bool finite = gradient_norm(optimizer, shards).finite;
  seen_[&optimizer] = finite ? Seen::finite : Seen::infinite;
  scale_gradients(optimizer, 1 / scale_);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, Communicator* shards) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (seen_.count(&optimizer) == 0) unscale(optimizer, shards);
  Seen& seen = seen_[&optimizer];
  if (seen == Seen::finite) {
    optimizer.step();
    seen = Seen::stepped;
    return true;
  }
  if (seen != Seen::infinite) throw Error("GradScaler: step() a second time before update()");
  if (auto* flat = dynamic_cast<FlatOptimizer*>(&optimizer)) flat->reset_gradient_factor();
  seen = Seen::left_out;
  return false;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (seen_.empty()) throw Error("GradScaler: update() without a step() before");
  bool finite = true;
  for (const auto& [optimizer, seen] : seen_)
    finite = finite && (seen == Seen::finite || seen == Seen::stepped);
  seen_.clear();
  if (finite) {
    if (++growth_tracker_ < options_.growth_interval) return;
    growth_tracker_ = 0;
    if (scale_ * options_.growth_factor <= kMost) scale_ *= options_.growth_factor;
    return;
  }
  growth_tracker_ = 0;
  scale_ *= options_.backoff_factor;
  if (scale_ < kLeast)
    throw Error::format(
        "GradScaler: the gradients are not finite however small the loss is scaled (now by {}): "
        "the training itself diverges, look at its loss and learning rate",
        scale_);
}

State GradScaler::state() const {
  const auto number = [](double value) { return at::full({}, value, at::kDouble); };
  State state = make_state();
  state.insert("scale", number(scale_));
  state.insert("growth_factor", number(options_.growth_factor));
  state.insert("backoff_factor", number(options_.backoff_factor));
  state.insert("growth_interval", options_.growth_interval);
  state.insert("_growth_tracker", growth_tracker_);
  return state;
}

void GradScaler::load(const State& state) {
  const auto scale = state.find("scale");
  const auto tracker = state.find("_growth_tracker");
  if (scale == state.end() || tracker == state.end() || !tracker->value().isInt())
    throw Error("the state is not that of a GradScaler: it has no scale and _growth_tracker");
  const c10::IValue& value = scale->value();  // Python's own is a float
  scale_ = value.isTensor() ? value.toTensor().item<double>() : value.toDouble();
  growth_tracker_ = tracker->value().toInt();
  seen_.clear();
}

}  // namespace af::train
