// SPDX-License-Identifier: Apache-2.0
// What state.pt will hold of a State, byte for byte, but for the tensors' values.
//
//   archive/data.pkl     the dicts, as a pickle; a tensor is a reference to a data/N
//   archive/byteorder    "little"
//   archive/data/0 …     the tensors' elements, in the order of the pickle
//   archive/version      "3": torch.save's, of the archive's format
//
// Depends on names, types and shapes only: processes with equal States plan the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "af/train/state_file.h"
#include "train/checkpoint/zip_layout.h"

namespace af::train {

// A tensor of a State, by its keys: "model/0.weight".
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
// In the order of the dicts, nested ones included. Throws af::Error, naming it, for what state.pt
// cannot hold.
std::vector<NamedTensor> tensors_of(const State& state);

struct StateLayout {
  // The tensors' memory is not looked at; they may have none (device meta). Two tensors that are
  // the same memory become one entry. Throws as tensors_of() does.
  explicit StateLayout(const State& state);

  struct Text {
    std::size_t entry;
    std::string text;
  };
  struct Tensor {
    std::string name;  // the first, if it has several
    at::ScalarType type;
    std::vector<int64_t> sizes;
    std::size_t entry;  // of the archive
  };

  std::vector<Text> texts;
  std::vector<Tensor> tensors;
  std::map<std::string, std::size_t> by_name;  // index of `tensors`
  ZipLayout zip;

  // Equal where all of the layout is.
  uint32_t fingerprint() const;
};

}  // namespace af::train
