// SPDX-License-Identifier: Apache-2.0
// Which rows each rank of a world learns in which step, while the world may change: what
// DataParallel (data_parallel.h) keeps and DataLoader (data_loader.h) reads after.
//
//   Dealer (dealer.h)               by row, for data in memory
//   WindowDealer (window_dealer.h)  by windows of blocks, for files: each is read by one rank
//
// An order is a pure function of its arguments, of its state and of the calls: ranks that make the
// same calls (but for `rank`) agree on everything, with no message between them. One step of an
// epoch takes the next `global_batch` rows at every world size; when fewer are left, LastBatch says
// what becomes of them.
//
// A world that is lost in mid-step: the step is completed by the ranks that are left, with the rows
// they have been dealt. Those of the vanished ranks are dealt again later in the epoch, which
// thereby gets longer. (docs/session-protocol.md)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "af/export.h"

namespace af::train {

enum class LastBatch {
  keep,  // a step of fewer rows; exact, since gradients are averaged by samples
  drop,  // the rows are left out in this epoch: all steps have the same size
};

// What a checkpoint holds of an order: named whole numbers, and lists of them.
struct OrderState {
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::vector<int64_t>> lists;
};

// Use from one thread.
class AF_PUBLIC DataOrder {
 public:
  virtual ~DataOrder() = default;
  // Goes on by itself; for looking ahead.
  virtual std::unique_ptr<DataOrder> clone() const = 0;

  virtual int64_t rows() const = 0;
  virtual int64_t global_batch() const = 0;
  virtual uint64_t seed() const = 0;
  // Of an epoch in which nothing is lost.
  virtual int64_t steps_of_epoch() const = 0;

  // The world that deals from the next step on: a world of one at first.
  // Throws af::Error for a rank that is not in it, and within a step: see change_world().
  virtual void set_world(int rank, int world_size) = 0;

  // The rows of this rank in the next step, in a fixed order, possibly none; nothing when `epoch`
  // is over. Asked again before complete(), it gives the same rows. Begins `epoch` if it is a later
  // one; an epoch that has been left behind (on a state that came from another rank) is over.
  virtual std::optional<std::vector<int64_t>> next(int64_t epoch) = 0;

  // A step is dealt and not completed.
  virtual bool in_step() const = 0;
  // No step of the epoch is left.
  virtual bool at_end() const = 0;
  // All rows of the step that ranks of this world have are learned.
  virtual void complete() = 0;

  // The epoch in progress; where a loop over epochs begins.
  virtual int64_t epoch() const = 0;
  // What is saved from now on goes on with the epoch behind this one. Nothing if that is so
  // already.
  virtual void finish_epoch(int64_t epoch) = 0;

  // Another world, in the middle of anything. By rank of the new world, `was` has the rank in the
  // world before (-1: in none). `begun`: some rank that has completed as many steps as this one has
  // been dealt the next; then that step, dealt by the old world, is to be completed by the new one.
  virtual void change_world(int rank, const std::vector<int>& was, bool begun) = 0;

  // The state for a checkpoint, which any world goes on from (a step that is begun is dealt anew),
  // or for another rank of this world, with the step that is begun.
  enum class Scope { to_save, to_send };
  virtual OrderState save(Scope scope) const = 0;
  // Keeps the world, takes the seed of the state. Throws af::Error if the state is of other data,
  // or makes no sense.
  virtual void restore(const OrderState& state) = 0;

  // The rows of each block, for an order that deals by blocks; none for one by row, whose steps
  // take rows from anywhere.
  virtual const std::vector<int64_t>* blocks() const { return nullptr; }
  // Blocks that have rows for later steps of this rank, as far as that is settled: worth keeping.
  virtual std::vector<int64_t> blocks_in_use() const { return {}; }
};

}  // namespace af::train
