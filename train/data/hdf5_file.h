// SPDX-License-Identifier: Apache-2.0
// Opening HDF5 files for reading.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/data/hdf5_handle.h"

namespace af::train {

// Without HDF5's file lock, which fails on read-only and on many network file systems (NFS, Lustre:
// errno 11, 37, 524), unless the person has asked for it: HDF5 itself lets HDF5_USE_FILE_LOCKING
// decide over what a program says. Throws af::Error.
Hdf5Handle open_hdf5(const std::filesystem::path& path);

std::vector<int64_t> shape_of(hid_t dataset);

// The files that patterns of the shell name ("run/*.h5"), in the order of the patterns and sorted
// by name within one. Throws af::Error for a pattern that no file fits.
std::vector<std::filesystem::path> files_of(const std::vector<std::string>& patterns);

}  // namespace af::train
