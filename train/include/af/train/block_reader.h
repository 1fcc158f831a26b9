// SPDX-License-Identifier: Apache-2.0
// Data as blocks of rows, each a few tensors by name: what a DataLoader (data_loader.h) reads.
//
//   Hdf5Blocks (hdf5_blocks.h)    datasets of HDF5 files
//   TensorBlocks                  what is in memory already
//   a class of the program's own  ROOT, Parquet, a simulation, …
//
//   struct Events : af::train::BlockReader {
//     std::vector<int64_t> block_rows() const override { return clusters_; }   // e.g. of a TTree
//     af::train::Batch read_block(int64_t block) const override {
//       af::train::Batch batch;
//       batch.add("x", …);   // [rows of the block, 4] float
//       batch.add("y", …);   // [rows of the block] int64
//       return batch;
//     }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "af/export.h"

namespace af::train {

// Tensors by name, in a fixed order; the first axis of each counts the same rows.
class AF_PUBLIC Batch {
 public:
  using Column = std::pair<std::string, at::Tensor>;

  // Throws af::Error for a name that is there already, a tensor without an axis, or one of another
  // number of rows.
  void add(std::string name, at::Tensor tensor);
  // Throws af::Error, naming those there are.
  const at::Tensor& operator[](std::string_view name) const;
  bool contains(std::string_view name) const;
  const std::vector<Column>& columns() const { return columns_; }
  int64_t rows() const { return columns_.empty() ? 0 : columns_.front().second.size(0); }

 private:
  std::vector<Column> columns_;
};

class AF_PUBLIC BlockReader {
 public:
  virtual ~BlockReader() = default;

  // The rows of each block, in the order of the rows. The same on all ranks, and at every call.
  virtual std::vector<int64_t> block_rows() const = 0;

  // A block: tensors in host memory with the same names, types and shapes (but for the rows) in
  // every block. The caller does not write into them. Called by several threads at once, also for
  // one and the same block; what it throws comes out of the loader's call for the rows concerned.
  virtual Batch read_block(int64_t block) const = 0;

  // The blocks are in memory already, and read_block() only points there: a loader may then take
  // rows from anywhere, and keeps all blocks.
  virtual bool in_memory() const { return false; }

  // Where a row comes from, for errors: "events.root, entry 17".
  virtual std::string describe_row(int64_t row) const;
};

// `rows` in blocks of `rows_of_block`, the last one perhaps shorter.
AF_PUBLIC std::vector<int64_t> even_blocks(int64_t rows, int64_t rows_of_block);

// All rows from `first` to before `last`, for what is read in order: a test set, say (see
// contiguous_share() in dealer.h).
AF_PUBLIC Batch read_rows(const BlockReader& reader, int64_t first, int64_t last);

// Tensors in host memory as they are, without a copy. Use from any thread.
class AF_PUBLIC TensorBlocks : public BlockReader {
 public:
  // `rows_of_block` matters for WindowDealer only.
  explicit TensorBlocks(Batch data, int64_t rows_of_block = 1024);

  std::vector<int64_t> block_rows() const override;
  Batch read_block(int64_t block) const override;
  bool in_memory() const override { return true; }

 private:
  Batch data_;
  int64_t rows_of_block_;
};

}  // namespace af::train
