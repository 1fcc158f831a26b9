// SPDX-License-Identifier: Apache-2.0
// Deals the rows of files to the ranks of a world that may change, such that a rank reads whole
// blocks (chunks of HDF5, row groups of Parquet) and no two ranks read the same one.
//
//   af::train::WindowDealer order(reader->block_rows(), 1024, seed);
//   af::train::DataLoader loader(reader, order);      // data_loader.h, with an example
//
// The order of an epoch: the blocks are permuted by (seed, epoch); every `window_blocks` of them
// make a window; the rows within a window are permuted by (seed, epoch, window). A window belongs
// to one rank, which takes its share of every step from there and opens the next window that nobody
// has opened when its own is done. How well that mixes the rows is a matter of window_blocks, which
// is also what a rank has to keep in memory.
//
// - A step has the same number of rows at every world size, but not the same rows: that is what
//   costs every rank the decoding of every block (dealer.h).
// - The end of an epoch: a rank that finds no window left to open helps with the one that has most
//   rows left, and reads it too. So all ranks have equal shares to within a row until the last
//   step, at the price of a few windows that are read by several ranks.
// - A change of the world: ranks that stay keep their windows. Those of ranks that are gone are
//   dealt before new ones are opened, from where they stand, with the rows of a step that a
//   vanished rank had been dealt. A checkpoint holds seed, epoch, next window and the position in
//   each open one, so any world goes on from it with no row twice or lost.
// - More ranks than windows, or a single block: works, with every rank reading every window.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "af/export.h"
#include "af/train/data_order.h"

namespace af::train {

// A window that is begun. Places are those of its permutation.
struct OpenWindow {
  struct Places {
    int64_t first;
    int64_t last;  // without
    bool operator==(const Places&) const = default;
  };
  int64_t window = 0;
  int64_t position = 0;        // places before it have been dealt
  std::vector<Places> missed;  // and of those, the ones to be dealt again
  std::vector<int> readers;    // ranks that have read it; the first one owns it
  bool operator==(const OpenWindow&) const = default;
};

struct WindowOptions {
  int64_t window_blocks = 8;
  LastBatch last = LastBatch::keep;
};

class AF_PUBLIC WindowDealer : public DataOrder {
 public:
  struct State {
    int64_t rows = 0;
    int64_t blocks = 0;
    int64_t window_blocks = 0;
    uint64_t seed = 0;
    int64_t epoch = 0;
    int64_t done = 0;              // rows of the epoch that are learned
    int64_t next_window = 0;       // those from here on are not opened yet
    std::vector<OpenWindow> open;  // readers: ranks of the world that deals the step, or will
    int dealt_to = 0;              // as in Dealer::State
    std::vector<int> dealt_as;
  };

  // The rows of each block, in the order of the rows (BlockReader::block_rows()). The same
  // arguments on all ranks. Throws af::Error for a negative number, or a batch or window of none.
  WindowDealer(std::vector<int64_t> block_rows, int64_t global_batch, uint64_t seed,
               WindowOptions options = {});

  std::unique_ptr<DataOrder> clone() const override {
    return std::make_unique<WindowDealer>(*this);
  }

  int64_t rows() const override { return state_.rows; }
  int64_t global_batch() const override { return global_batch_; }
  uint64_t seed() const override { return state_.seed; }
  int64_t steps_of_epoch() const override;
  int64_t windows() const;

  void set_world(int rank, int world_size) override;
  std::optional<std::vector<int64_t>> next(int64_t epoch) override;
  bool in_step() const override { return state_.dealt_to > 0; }
  bool at_end() const override { return !in_step() && rows_of_step() == 0; }
  void complete() override;
  int64_t epoch() const override { return state_.epoch; }
  void finish_epoch(int64_t epoch) override;
  void change_world(int rank, const std::vector<int>& was, bool begun) override;

  OrderState save(Scope scope) const override;
  void restore(const OrderState& state) override;
  const std::vector<int64_t>* blocks() const override { return block_rows_.get(); }
  std::vector<int64_t> blocks_in_use() const override;

  const State& state() const { return state_; }
  State state_to_save() const;
  void load(const State& state);

 private:
  struct Epoch;  // its permutation of the blocks
  int64_t rows_of_step() const;
  std::vector<int64_t> blocks_of(int64_t window) const;
  const std::vector<int64_t>& rows_of(int64_t window);
  void begin_epoch(int64_t epoch);
  void make_order();
  void check(const State& state) const;

  std::shared_ptr<const std::vector<int64_t>> block_rows_;
  std::shared_ptr<const std::vector<int64_t>> first_rows_;  // of each block
  int64_t global_batch_;
  LastBatch last_;
  State state_;
  int rank_ = 0;
  int world_size_ = 1;
  std::shared_ptr<const Epoch> epoch_order_;
  // The rows of windows that this rank deals from.
  std::map<int64_t, std::shared_ptr<const std::vector<int64_t>>> window_rows_;
};

}  // namespace af::train
