// SPDX-License-Identifier: Apache-2.0
// One pass over parameter, gradient and moments in host memory: what an optimizer does to them.
//
// Every CPU gives the same bits: the loops exist for several instruction sets and differ in width
// only. None contracts a product and a sum into one rounding (-ffp-contract=off in
// train/module.mk), none uses an approximation, and sums go over a fixed number of lanes.
//
// Arithmetic is that of libtorch's optimizers, operation by operation, in the type of the data.
#pragma once

#include <cstddef>
#include <vector>

namespace af::train {

struct AdamPass {
  double factor = 1;  // of the gradients
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;       // AdamW's decay
  double bias_correction1 = 1;  // 1 - beta1^step
  double bias_correction2 = 1;
};

struct SgdPass {
  double factor = 1;
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the momentum buffer has no value yet
};

struct SquaresSum {
  double sum = 0;
  bool finite = true;  // every value is; the sum of f64 may be infinite all the same
};

enum class InstructionSet { baseline, avx2, avx512 };

// Those that this CPU and this build have, from the narrowest on.
std::vector<InstructionSet> instruction_sets();

// The arrays do not overlap. T: float, double.
template <typename T>
void adam_pass(InstructionSet set, const AdamPass& pass, T* parameter, const T* gradient,
               T* first_moment, T* second_moment, std::size_t count);

// `buffer` is not touched without a momentum.
template <typename T>
void sgd_pass(InstructionSet set, const SgdPass& pass, T* parameter, const T* gradient, T* buffer,
              std::size_t count);

template <typename T>
SquaresSum squares_of(InstructionSet set, const T* values, std::size_t count);

}  // namespace af::train
