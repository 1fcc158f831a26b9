// SPDX-License-Identifier: Apache-2.0
// Where an optimizer of libtorch keeps the state of a parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <sstream>
#include <string>
#include <type_traits>

namespace af::train {

// Optimizer::state() is keyed by the TensorImpl: its address as text in libtorch 1.13, as a pointer
// in 2.x.
template <typename Map>
typename Map::key_type key_of(const Map&, const at::Tensor& parameter) {
  if constexpr (std::is_same_v<typename Map::key_type, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

}  // namespace af::train
