// SPDX-License-Identifier: Apache-2.0
// From the elements of a dataset, as the file holds them, to the tensors that are made of them.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "af/train/hdf5_blocks.h"
#include "train/data/hdf5_handle.h"
#include "train/data/number_format.h"

namespace af::train {

// A number, or an array of them, within an element.
struct Hdf5Field {
  std::string name;  // of a compound type's field
  std::size_t offset = 0;
  NumberFormat format;
  std::vector<int64_t> shape;  // of an array
  int64_t count = 1;           // numbers of it
};

struct Hdf5Element {
  std::size_t bytes = 0;          // in the file
  std::vector<Hdf5Field> fields;  // one with no name, if it is no compound
  bool compound = false;
  // What H5Dread shall deliver for `fields` to be true: the file's own type, where `in_file`.
  Hdf5Handle memory;
  bool in_file = true;
};

// Throws af::Error with `where` for what cannot become a tensor, and for fields that are not there.
Hdf5Element element_of(hid_t file_type, const std::vector<std::string>& fields,
                       const std::string& where);

// A tensor of a batch.
struct Hdf5Tensor {
  struct Piece {
    std::size_t from = 0;  // bytes within the file's element
    std::size_t from_step = 0;
    std::size_t to = 0;  // bytes within the tensor's element
    int64_t count = 1;
    ConvertNumbers convert = nullptr;
  };
  std::string name;
  at::ScalarType type{};
  std::vector<int64_t> element_shape;  // further axes that come from fields and arrays
  std::size_t element_bytes = 0;       // in the tensor
  std::vector<Piece> pieces;
  bool as_in_file = false;  // the bytes are the same
};

std::vector<Hdf5Tensor> tensors_of(const Hdf5Element& element, const Hdf5Column& column);

// `count` elements that lie one after the other in both memories.
void convert_elements(const Hdf5Element& element, const Hdf5Tensor& tensor, const std::byte* from,
                      std::byte* to, std::size_t count);

}  // namespace af::train
