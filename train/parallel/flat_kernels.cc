// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/flat_kernels.h"

#include <cmath>

namespace af::train {
namespace {

// A function with a target of its own takes in only what has a target that it includes, and only
// if it is told to: the loops are written once and compiled into each of the variants below.
#define AF_INLINE [[gnu::always_inline]] inline

enum class Decay { none, l2, decoupled };

template <typename T, Decay decay>
AF_INLINE void adam_loop(const AdamPass& pass, T* __restrict parameter,
                         const T* __restrict gradient, T* __restrict first_moment,
                         T* __restrict second_moment, std::size_t count) {
  const T factor = static_cast<T>(pass.factor), weight_decay = static_cast<T>(pass.weight_decay);
  const T kept = static_cast<T>(1 - pass.lr * pass.weight_decay);
  const T beta1 = static_cast<T>(pass.beta1), rest1 = static_cast<T>(1 - pass.beta1);
  const T beta2 = static_cast<T>(pass.beta2), rest2 = static_cast<T>(1 - pass.beta2);
  const T root = static_cast<T>(std::sqrt(pass.bias_correction2));
  const T eps = static_cast<T>(pass.eps), step = static_cast<T>(-pass.lr / pass.bias_correction1);
  for (std::size_t i = 0; i < count; ++i) {
    T value = parameter[i];
    T slope = gradient[i] * factor;
    if constexpr (decay == Decay::l2) slope += weight_decay * value;
    if constexpr (decay == Decay::decoupled) value *= kept;
    const T first = first_moment[i] * beta1 + rest1 * slope;
    const T second = second_moment[i] * beta2 + rest2 * slope * slope;
    first_moment[i] = first;
    second_moment[i] = second;
    parameter[i] = value + step * first / (std::sqrt(second) / root + eps);
  }
}

template <typename T>
AF_INLINE void adam(const AdamPass& pass, T* parameter, const T* gradient, T* first_moment,
                    T* second_moment, std::size_t count) {
  if (pass.weight_decay == 0)
    adam_loop<T, Decay::none>(pass, parameter, gradient, first_moment, second_moment, count);
  else if (pass.decoupled)
    adam_loop<T, Decay::decoupled>(pass, parameter, gradient, first_moment, second_moment, count);
  else
    adam_loop<T, Decay::l2>(pass, parameter, gradient, first_moment, second_moment, count);
}

enum class Momentum { none, first, plain, nesterov_first, nesterov };

template <typename T, Momentum kind, bool decays>
AF_INLINE void sgd_loop(const SgdPass& pass, T* __restrict parameter, const T* __restrict gradient,
                        T* __restrict buffer, std::size_t count) {
  const T factor = static_cast<T>(pass.factor), weight_decay = static_cast<T>(pass.weight_decay);
  const T momentum = static_cast<T>(pass.momentum), rest = static_cast<T>(1 - pass.dampening);
  const T step = static_cast<T>(-pass.lr);
  for (std::size_t i = 0; i < count; ++i) {
    T slope = gradient[i] * factor;
    if constexpr (decays) slope += weight_decay * parameter[i];
    if constexpr (kind != Momentum::none) {
      T moved = slope;
      if constexpr (kind == Momentum::plain || kind == Momentum::nesterov)
        moved = buffer[i] * momentum + rest * slope;
      buffer[i] = moved;
      if constexpr (kind == Momentum::nesterov || kind == Momentum::nesterov_first)
        slope += momentum * moved;
      else
        slope = moved;
    }
    parameter[i] += step * slope;
  }
}

template <typename T, Momentum kind>
AF_INLINE void sgd_of(const SgdPass& pass, T* parameter, const T* gradient, T* buffer,
                      std::size_t count) {
  if (pass.weight_decay == 0)
    sgd_loop<T, kind, false>(pass, parameter, gradient, buffer, count);
  else
    sgd_loop<T, kind, true>(pass, parameter, gradient, buffer, count);
}

template <typename T>
AF_INLINE void sgd(const SgdPass& pass, T* parameter, const T* gradient, T* buffer,
                   std::size_t count) {
  if (pass.momentum == 0)
    sgd_of<T, Momentum::none>(pass, parameter, gradient, buffer, count);
  else if (pass.nesterov && pass.first)
    sgd_of<T, Momentum::nesterov_first>(pass, parameter, gradient, buffer, count);
  else if (pass.nesterov)
    sgd_of<T, Momentum::nesterov>(pass, parameter, gradient, buffer, count);
  else if (pass.first)
    sgd_of<T, Momentum::first>(pass, parameter, gradient, buffer, count);
  else
    sgd_of<T, Momentum::plain>(pass, parameter, gradient, buffer, count);
}

// Eight sums side by side, added up at the end: wide enough for every instruction set, and the same
// additions in all of them. The squares of f32 cannot overflow in f64, those of f64 can: whether a
// value was not finite is told by 0 * value, which is 0 for those that are.
template <typename T>
AF_INLINE SquaresSum squares(const T* __restrict values, std::size_t count) {
  constexpr std::size_t kLanes = 8;
  double sums[kLanes] = {};
  double probes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
      probes[lane] += value * 0;
    }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const double value = values[i];
    sums[lane] += value * value;
    probes[lane] += value * 0;
  }
  SquaresSum result;
  double probe = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    result.sum += sums[lane];
    probe += probes[lane];
  }
  result.finite = probe == 0;
  return result;
}

#define AF_VARIANT(NAME, ...)                                                                  \
  template <typename T>                                                                        \
  __VA_ARGS__ void adam_##NAME(const AdamPass& pass, T* parameter, const T* gradient,          \
                               T* first_moment, T* second_moment, std::size_t count) {         \
    adam(pass, parameter, gradient, first_moment, second_moment, count);                       \
  }                                                                                            \
  template <typename T>                                                                        \
  __VA_ARGS__ void sgd_##NAME(const SgdPass& pass, T* parameter, const T* gradient, T* buffer, \
                              std::size_t count) {                                             \
    sgd(pass, parameter, gradient, buffer, count);                                             \
  }                                                                                            \
  template <typename T>                                                                        \
  __VA_ARGS__ SquaresSum squares_##NAME(const T* values, std::size_t count) {                  \
    return squares(values, count);                                                             \
  }
AF_VARIANT(baseline, )
#if defined(__x86_64__)
AF_VARIANT(avx2, [[gnu::target("avx2")]])
AF_VARIANT(avx512, [[gnu::target("avx512f,avx512vl,avx512dq,avx512bw")]])
#define AF_CALL(NAME, ...)               \
  switch (set) {                         \
    case InstructionSet::avx512:         \
      return NAME##_avx512(__VA_ARGS__); \
    case InstructionSet::avx2:           \
      return NAME##_avx2(__VA_ARGS__);   \
    case InstructionSet::baseline:       \
      break;                             \
  }                                      \
  return NAME##_baseline(__VA_ARGS__)
#else
#define AF_CALL(NAME, ...) \
  static_cast<void>(set);  \
  return NAME##_baseline(__VA_ARGS__)
#endif

}  // namespace

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {InstructionSet::baseline};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back(InstructionSet::avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
    sets.push_back(InstructionSet::avx512);
#endif
  return sets;
}

template <typename T>
void adam_pass(InstructionSet set, const AdamPass& pass, T* parameter, const T* gradient,
               T* first_moment, T* second_moment, std::size_t count) {
  AF_CALL(adam, pass, parameter, gradient, first_moment, second_moment, count);
}

template <typename T>
void sgd_pass(InstructionSet set, const SgdPass& pass, T* parameter, const T* gradient, T* buffer,
              std::size_t count) {
  AF_CALL(sgd, pass, parameter, gradient, buffer, count);
}

template <typename T>
SquaresSum squares_of(InstructionSet set, const T* values, std::size_t count) {
  AF_CALL(squares, values, count);
}

template void adam_pass(InstructionSet, const AdamPass&, float*, const float*, float*, float*,
                        std::size_t);
template void adam_pass(InstructionSet, const AdamPass&, double*, const double*, double*, double*,
                        std::size_t);
template void sgd_pass(InstructionSet, const SgdPass&, float*, const float*, float*, std::size_t);
template void sgd_pass(InstructionSet, const SgdPass&, double*, const double*, double*,
                       std::size_t);
template SquaresSum squares_of(InstructionSet, const float*, std::size_t);
template SquaresSum squares_of(InstructionSet, const double*, std::size_t);

}  // namespace af::train
