// SPDX-License-Identifier: Apache-2.0
// The batches of this rank: rows as an order deals them, read ahead by threads.
//
//   auto events = std::make_shared<af::train::Hdf5Blocks>(…);            // hdf5_blocks.h
//   af::train::WindowDealer order(events->block_rows(), 1024, seed);     // window shuffle
//   af::train::DataLoader loader(events, order, {.types = {{"y", at::kLong}}});
//   replicas.keep("data", order);                                        // data_parallel.h
//   …
//   while (const auto rows = replicas.next(epoch)) {
//     const af::train::Batch batch = loader.load(*rows);
//     … batch["x"], batch["y"] …
//     replicas.step(batch.rows(), loss, adam);
//   }
//
// and in a program without DataParallel:
//
//   while (const auto batch = loader.next(epoch)) { … (*batch)["x"] … }
//
// With a Dealer in place of the WindowDealer it is a full shuffle: for a reader whose blocks are in
// memory (contiguous HDF5, TensorBlocks), or that fits into memory_bytes, where it is then kept.
//
// How it goes: a copy of the order is run ahead of the training. Blocks that it will need are read
// by `threads` in that order, as far as memory goes; from them the next `prefetch` batches are put
// together, so that in the best case load() only hands one out. Where the world changes, what was
// prepared does not fit any more: blocks that are in memory and still needed are kept, the rest is
// forgotten. What comes out depends on rows alone, never on what was prepared.
//
// Memory: memory_bytes of blocks read ahead, and beside them the open window of this rank, twice at
// the change from one to the next, and prefetch + 1 batches.
//
// Use from one thread. Errors, of threads too, come out of load() and next() as af::Error with the
// row's place; the same call then tries once more. Blocks that do not fit each other are an error.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "af/export.h"
#include "af/train/block_reader.h"
#include "af/train/data_order.h"

namespace af::train {

struct LoaderOptions {
  int threads = 1;   // 0: all is done within load()
  int prefetch = 4;  // batches
  std::size_t memory_bytes = std::size_t{256} << 20;
  // Columns to be converted: to kFloat, kDouble, or kLong (whole numbers). Others come as they are.
  std::map<std::string, at::ScalarType> types;
  // Batches in pinned memory, for copies to a GPU that run beside it: where there is one, if not
  // said.
  std::optional<bool> pinned;
};

class AF_PUBLIC DataLoader {
 public:
  // `order` must outlive this object. Reads the first block, to know what there is. Throws
  // af::Error, also where the order and the reader do not have the same rows, or where an order by
  // row would have to read from everywhere.
  DataLoader(std::shared_ptr<const BlockReader> reader, DataOrder& order,
             LoaderOptions options = {});
  // Waits for reads that have begun.
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // These rows in this order: new tensors in host memory. None: tensors of no rows.
  Batch load(const std::vector<int64_t>& rows);

  // This rank's rows of the next step; nothing when the epoch is over. The step before counts as
  // learned: DataOrder::complete() is called here, if it has not been. (Do so before the order is
  // saved between two steps.)
  std::optional<Batch> next(int64_t epoch);

  // How many blocks have been read so far.
  int64_t blocks_read() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
