// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/micro_batch_random.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <utility>

namespace af::train {
namespace {

// A key that libtorch leaves to programs that want to see every operation of a thread, before
// autograd and autocast; its name is older than such programs.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator* current = nullptr;

// The place of the generator among the arguments, if it is one that was left out.
std::optional<std::size_t> missing_generator(const c10::FunctionSchema& schema,
                                             const c10::IValue* arguments) {
  const auto& declared = schema.arguments();
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() != "generator") continue;
    return arguments[i].isNone() ? std::optional(i) : std::nullopt;
  }
  return std::nullopt;
}

// An operation without a tensor (rand of a size) calls one with a tensor, and that comes here too.
bool works_on(at::Device device, const c10::IValue* arguments, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (arguments[i].isTensor() && arguments[i].toTensor().defined())
      return arguments[i].toTensor().device() == device;
  return false;
}

void with_generator(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const std::size_t count = schema.arguments().size();
  c10::IValue* arguments = stack->data() + (stack->size() - count);
  if (current != nullptr) {
    const auto place = missing_generator(schema, arguments);
    if (place && works_on(current->device(), arguments, count)) arguments[*place] = *current;
  }
  // On to autograd and the rest; what those call comes here again.
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
                            stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&with_generator>());
}

RandomGuard::RandomGuard(at::Generator generator)
    : generator_(std::move(generator)), before_(current), include_(kKey) {
  current = &generator_;
}

RandomGuard::~RandomGuard() {
  current = before_;
}

at::Generator make_generator(at::Device device) {
  at::Generator standard = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(standard.mutex());
  return standard.clone();
}

uint64_t seed_of_micro_batch(uint64_t step_seed, int stage, int micro_batch) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  const auto place = static_cast<uint64_t>(stage) << 32 | static_cast<uint32_t>(micro_batch);
  return mix(mix(step_seed) ^ place);
}

}  // namespace af::train
