// SPDX-License-Identifier: Apache-2.0
// Mixed precision: the type that all ranks compute in, and the region of code where they do.
//
//   const auto precision = af::train::agree_on_precision(world, device);
//   ...
//   af::train::GradScaler scaler({.enabled = precision == af::train::Precision::f16});
//   ...
//   {
//     af::train::Autocast autocast(device.type(), precision);
//     loss = cross_entropy(model->forward(x), y);
//   }
//   scaler.scale(loss).backward();
//
// Parameters, gradients and the optimizer stay f32; matrix products and convolutions inside the
// region are done in the half type, as libtorch's autocast decides operation by operation.
//
// Ranks may have different GPUs (a T4 has no bf16, an A100 has), and their gradients are summed:
// they agree on one type at the start. In an elastic run GPUs of another kind may come later: name
// one there that all kinds have, f16 usually.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "af/export.h"

namespace af::train {

enum class Precision { f32, f16, bf16 };
AF_PUBLIC const char* name_of(Precision precision);  // "f32"
// From such a name, as in a program's option. Throws af::Error for others.
AF_PUBLIC Precision to_precision(const std::string& name);
AF_PUBLIC at::ScalarType type_of(Precision precision);

// slow: it works, and f32 is faster.
enum class Support { none, slow, fast };
struct PrecisionSupport {
  std::string device;  // for people: "Tesla T4 (compute capability 7.5)"
  Support f16 = Support::none;
  Support bf16 = Support::none;
};

// Of the CPU, or of a GPU by its compute capability. Throws af::Error where the driver cannot be
// asked.
AF_PUBLIC PrecisionSupport precision_support(at::Device device);
AF_PUBLIC PrecisionSupport support_of_capability(const std::string& name, int major, int minor);

// Without `wanted`: bf16 where it is fast on all ranks, which needs no scaling of losses, else f16,
// else f32. A pure function; throws af::Error that names the ranks which cannot, and what all can.
AF_PUBLIC Precision choose_precision(const std::vector<PrecisionSupport>& ranks,
                                     std::optional<Precision> wanted = std::nullopt);

// choose_precision() for the devices of all ranks, the same on all. Collective. Throws af::Error on
// all ranks, also when they do not want the same; CommunicatorError.
AF_PUBLIC Precision agree_on_precision(Communicator& world, at::Device device,
                                       std::optional<Precision> wanted = std::nullopt);

// Autocast on this thread for as long as it lives, and what was before afterwards; f32: none, also
// within another one. May be nested. Ends before backward().
class AF_PUBLIC Autocast {
 public:
  Autocast(at::DeviceType device, Precision precision);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool enabled_before_;
  at::ScalarType type_before_;
};

}  // namespace af::train
