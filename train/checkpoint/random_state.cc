// SPDX-License-Identifier: Apache-2.0
#include "af/train/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>
#include <string>

#include "common/error.h"

namespace af::train {
namespace {

at::Generator generator_of(at::Device device) {
  // Without an index: the device in use. The generator wants to know.
  return at::globalContext().defaultGenerator(device);
}

at::Tensor get(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error::format("the state of a random number generator does not fit: {}",
                        text.substr(0, text.find('\n')));
  }
}

// splitmix64 (Steele, Lea, Flood 2014): numbers that are near give numbers that are not.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

RandomState random_state(at::Device device) {
  RandomState state;
  state.host = get(generator_of(at::kCPU));
  if (!device.is_cpu()) state.device = get(generator_of(device));
  return state;
}

void set_random_state(const RandomState& state, at::Device device) {
  if (state.host.defined()) set(generator_of(at::kCPU), state.host);
  if (state.device.defined() && !device.is_cpu()) set(generator_of(device), state.device);
}

void seed_random(uint64_t seed, int64_t step, int rank, at::Device device) {
  const uint64_t own =
      mix(mix(mix(seed) ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(rank));
  for (const at::Device one : {at::Device(at::kCPU), device}) {
    at::Generator generator = generator_of(one);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(own);
    if (device.is_cpu()) break;
  }
}

}  // namespace af::train
