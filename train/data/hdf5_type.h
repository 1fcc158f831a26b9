// SPDX-License-Identifier: Apache-2.0
// Which tensor type an HDF5 type is read into.
#pragma once

#include <c10/core/ScalarType.h>
#include <hdf5.h>

#include <optional>

#include "train/data/hdf5_handle.h"
#include "train/data/number_format.h"

namespace af::train {

struct Hdf5Type {
  at::ScalarType scalar;
  // What H5Dread shall deliver: the native type, or for h5py's bool the file's own enum, which HDF5
  // does not convert to a number.
  Hdf5Handle memory;
};

// Nothing for a type that has no tensor: text, compound, references, float of other sizes.
std::optional<Hdf5Type> tensor_type_of(hid_t file_type);

// How the numbers of a file lie there; nothing for what is not stored as plain numbers of 1, 2, 4
// or 8 bytes (HDF5 also knows numbers of 3 bytes, or of 12 bits in 16).
std::optional<NumberFormat> number_format_of(hid_t file_type);

// "a compound type", for the error.
const char* name_of_class(hid_t file_type);

}  // namespace af::train
