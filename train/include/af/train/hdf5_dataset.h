// SPDX-License-Identifier: Apache-2.0
// A dataset of an HDF5 file as rows of tensors. The first axis counts the rows (samples); the
// others are the shape of a row.
//
//   af::train::Hdf5Dataset images("digits.h5", "train/images");
//   at::Tensor block = images.read_block(3);     // uint8 [256, 64]
//   at::Tensor some = images.read(100, 50);      // rows 100 to 149
//
// Read blocks, not rows: a block is a whole number of chunks, and a compressed chunk is
// decompressed as a whole for each row that is asked of it (1,000 times slower, measured).
//
// Types: whole numbers and floats of either byte order, and h5py's bool. uint16 and uint32, which
// torch does not have, come as int32 and int64, uint64 as int64. Others (text, compound) are
// refused.
//
// Processes and threads: open the file after fork(), in each process for itself; a read in a child
// of the process that opened it throws, because it would move the parent's file position. Threads
// may share an object, but HDF5 lets one thread in at a time. The file is opened without HDF5's
// file lock, which fails on read-only and on many network file systems.
//
// Errors: af::Error with file, dataset and shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "af/export.h"

namespace af::train {

class AF_PUBLIC Hdf5Dataset {
 public:
  Hdf5Dataset(const std::filesystem::path& file, const std::string& dataset);
  Hdf5Dataset(Hdf5Dataset&&) noexcept;
  Hdf5Dataset& operator=(Hdf5Dataset&&) noexcept;
  ~Hdf5Dataset();

  int64_t rows() const;
  const std::vector<int64_t>& row_shape() const;
  at::ScalarType type() const;

  // The rows of a chunk; of a dataset without chunks, what makes about 1 MiB. The last block may
  // have fewer.
  int64_t block_rows() const;
  int64_t blocks() const;

  // Tensors in host memory of shape [count, row_shape…], their own each time.
  at::Tensor read(int64_t first_row, int64_t count) const;
  at::Tensor read_block(int64_t block) const;
  at::Tensor read_all() const { return read(0, rows()); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
