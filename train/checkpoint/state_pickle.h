// SPDX-License-Identifier: Apache-2.0
// The pickle in a state.pt and what it refers to, read with libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "af/train/state_file.h"

namespace af::train {

// All of it, in memory. Throws as read_state() does; so does the other.
State unpickle_all(const std::filesystem::path& path);

// A tensor in a file.
struct StoredTensor {
  std::string name;
  at::Tensor shape;     // device meta; the strides are those in the file
  uint64_t offset = 0;  // in the file, of the first element
};
struct StoredState {
  State state;  // its tensors on the device meta
  std::vector<StoredTensor> tensors;
};
// Reads no tensor.
StoredState unpickle_shapes(const std::filesystem::path& path);

}  // namespace af::train
