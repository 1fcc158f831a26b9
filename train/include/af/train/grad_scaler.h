// SPDX-License-Identifier: Apache-2.0
// The loss of a training in f16, scaled so that small gradients do not become zero, as PyTorch's
// torch.amp.GradScaler does it (libtorch has none for C++):
//
//   af::train::GradScaler scaler;
//   replicas.keep("optimizer", adam);
//   replicas.keep(
//       "scaler", [&] { return scaler.state(); },
//       [&](const c10::IValue& value) { scaler.load(value.toGenericDict()); });
//   ...
//   at::Tensor loss;
//   {
//     af::train::Autocast autocast(at::kCUDA, af::train::Precision::f16);
//     loss = cross_entropy(model->forward(x), y);
//   }
//   scaler.scale(loss).backward();
//   replicas.step(rows->size(), loss, [&] {
//     scaler.unscale(adam);                      // only to look at or clip the gradients
//     af::train::clip_gradients(adam, 1.0);
//     scaler.step(adam);
//     scaler.update();
//   });
//
// The scale begins at 65536, halves when a gradient was not finite (that step is left out), and
// doubles after 2000 steps without. Use it with f16; bf16 and f32 need none.
//
// All ranks do the same, without talking to each other: after a reduction an infinity of one rank
// is in the sums of all. Where a rank has parts of the gradients only, give the `shards` that make
// up the whole; then unscale() and step() are collective.
//
// Use from one thread.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>

#include "af/communicator.h"
#include "af/export.h"
#include "af/train/state_file.h"

namespace af::train {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // steps
  bool enabled = true;  // false: everything passes through, for one program with and without
};

class AF_PUBLIC GradScaler {
 public:
  // Throws af::Error for factors that do not grow or back off.
  explicit GradScaler(GradScalerOptions options = {});

  bool enabled() const { return options_.enabled; }
  double scale() const { return options_.enabled ? scale_ : 1; }

  // loss * scale(), to call backward() on. Its mean over samples, unscaled, is for everything else.
  at::Tensor scale(const at::Tensor& loss) const;

  // The gradients become what they would be without a scale (a flat optimizer's in its step), and
  // it is noted whether they are finite. Once for each optimizer between two update(); throws
  // af::Error the second time. step() does it where it has not been done.
  void unscale(torch::optim::Optimizer& optimizer, Communicator* shards = nullptr);

  // optimizer.step(), or nothing if a gradient is not finite: then it returns false.
  bool step(torch::optim::Optimizer& optimizer, Communicator* shards = nullptr);

  // Behind the step of all optimizers: the next scale. Throws af::Error when none was stepped, and
  // when gradients have stayed infinite down to a scale at which f16 has no part in it.
  void update();

  // {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}, the names
  // of PyTorch's; the factors of a state that is loaded do not count, those given to the
  // constructor do.
  State state() const;
  void load(const State& state);

 private:
  enum class Seen { finite, infinite, stepped, left_out };

  GradScalerOptions options_;
  double scale_;
  int64_t growth_tracker_ = 0;
  std::map<const torch::optim::Optimizer*, Seen> seen_;  // since the last update()
};

}  // namespace af::train
