// SPDX-License-Identifier: Apache-2.0
// Blocks in memory, and batches made of their rows.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "af/train/block_reader.h"
#include "train/data/row_gather.h"

namespace af::train {

// A block, for all that need it. What `state` is belongs to the loader's lock; the rest is written
// by the thread that reads it, before it is `here`.
struct LoadedBlock {
  enum class State { wanted, reading, here };
  int64_t number = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  State state = State::wanted;
  bool queued = false;
  std::vector<at::Tensor> columns;      // contiguous
  std::vector<const std::byte*> bases;  // where they begin
  std::exception_ptr error;
};

// What batches look like: learned from one block, the same for all. Const, so for all threads.
class BatchAssembly {
 public:
  // Throws af::Error for a type that a column cannot be converted to, or a column that is not
  // there.
  BatchAssembly(const Batch& example, const std::map<std::string, at::ScalarType>& types,
                bool pinned);

  std::size_t row_bytes() const { return row_bytes_; }  // in the blocks
  // Throws af::Error, if it has other columns than the example.
  void take(Batch read, LoadedBlock& block) const;
  // rows[i] lies in blocks[block_of_row[i]]; all of them in the only block, if that is empty.
  Batch assemble(const std::vector<int64_t>& rows, const std::vector<uint32_t>& block_of_row,
                 const std::vector<std::shared_ptr<LoadedBlock>>& blocks) const;

  // Makes `next` a part of `block`, if it lies right behind it in memory.
  bool join(LoadedBlock& block, const LoadedBlock& next) const;

 private:
  struct Column {
    std::string name;
    at::ScalarType from{};
    at::ScalarType to{};
    std::vector<int64_t> row_shape;
    RowGather gather;
  };
  std::vector<Column> columns_;
  std::size_t row_bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace af::train
