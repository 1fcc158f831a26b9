// SPDX-License-Identifier: Apache-2.0
// Random numbers of a stage that do not depend on what other threads draw.
//
// Dropout and the like draw from the default generator of their device, which is one for the whole
// process: with two stages on one device it would depend on the threads' timing which of them gets
// which numbers. So while a RandomGuard lives, operations of its thread that take a generator and
// got none get the guard's.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace af::train {

// Of one thread. Operations on other devices than the generator's are left alone.
class RandomGuard {
 public:
  explicit RandomGuard(at::Generator generator);
  ~RandomGuard();
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  at::Generator generator_;
  at::Generator* before_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

// A generator of the device's kind, apart from the default one.
at::Generator make_generator(at::Device device);

// The seed for a micro-batch: the same arguments give the same, and any change another
// (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
uint64_t seed_of_micro_batch(uint64_t step_seed, int stage, int micro_batch);

}  // namespace af::train
