// SPDX-License-Identifier: Apache-2.0
// The floating types whose gradients are reduced over ranks.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "af/communicator.h"

namespace af::train {

// Nothing for a type that is not one of f16, bf16, f32 and f64.
inline std::optional<DataType> reduced_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::f32;
    case at::kDouble:
      return DataType::f64;
    case at::kHalf:
      return DataType::f16;
    case at::kBFloat16:
      return DataType::bf16;
    default:
      return {};
  }
}

}  // namespace af::train
