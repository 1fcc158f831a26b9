// SPDX-License-Identifier: Apache-2.0
// A model's and an optimizer's numbers as a State, by name, and back.
//
// state_of(model) has the names and shapes of Python's model.state_dict(), so a Python model of the
// same structure loads it. Optimizer state goes by parameter name too, not by position: it survives
// a change in the order of the parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "af/export.h"
#include "af/train/state_file.h"

namespace af::train {

// Parameters and buffers. The tensors are the model's own, not copies.
AF_PUBLIC State state_of(const torch::nn::Module& model);

// Copies into the model's own tensors, whatever device they are on. Throws af::Error, before
// anything is changed, when a name is missing, unknown, or has another shape.
AF_PUBLIC void load_into(torch::nn::Module& model, const State& state);

// For the parameters of `model` that have made a step: {name: {"step": int, "exp_avg": tensor,
// "exp_avg_sq": tensor}} of Adam and AdamW (with amsgrad "max_exp_avg_sq" too), {name:
// {"momentum_buffer": tensor}} of SGD. Throws af::Error for other optimizers.
AF_PUBLIC State state_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& model);
AF_PUBLIC void load_into(torch::optim::Optimizer& optimizer, const torch::nn::Module& model,
                         const State& state);

}  // namespace af::train
