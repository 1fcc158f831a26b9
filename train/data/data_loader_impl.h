// SPDX-License-Identifier: Apache-2.0
// What a DataLoader has and does, behind its public class: what there is to read (data_loader.cc),
// the steps it foresees (data_loader_ahead.cc), the reading and putting together by its threads and
// by whoever waits (data_loader_work.cc).
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "af/train/data_loader.h"
#include "train/data/batch_assembly.h"

namespace af::train {

using BlockRef = std::shared_ptr<LoadedBlock>;

// A batch that is going to be asked for. Like blocks: `state` belongs to the lock.
struct Ahead {
  enum class State { waiting, in_work, done };
  std::vector<int64_t> rows;
  std::vector<uint32_t> block_of_row;
  std::vector<BlockRef> blocks;
  State state = State::waiting;
  Batch batch;
  std::exception_ptr error;

  bool ready() const {
    return std::all_of(blocks.begin(), blocks.end(), [](const BlockRef& block) {
      return block->state == LoadedBlock::State::here;
    });
  }
};

struct DataLoader::Impl {
  Impl(std::shared_ptr<const BlockReader> the_reader, DataOrder& the_order,
       LoaderOptions the_options);
  ~Impl();

  std::shared_ptr<const BlockReader> reader;
  DataOrder& order;
  const LoaderOptions options;
  // By block. The reader's rows, and where they begin.
  std::vector<int64_t> block_rows;
  std::vector<int64_t> first_rows;
  int64_t even = 0;  // the rows of all blocks but the last, if they are the same
  std::optional<BatchAssembly> assembly;
  Batch nothing;  // a batch of no rows
  bool keep_all = false;
  std::vector<BlockRef> there;  // all there is, in large pieces, if the reader has it in memory
  bool delivered = false;       // next() has handed out a step

  std::unique_ptr<DataOrder> foreseen;  // has dealt what is in `ahead`
  std::size_t rows_ahead = 0;
  std::vector<uint32_t> marks;  // by block: its place in the step that is being foreseen, plus 1

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::deque<std::shared_ptr<Ahead>> ahead;
  std::deque<std::weak_ptr<LoadedBlock>> reads;    // those that nobody wants any more vanish
  std::vector<std::weak_ptr<LoadedBlock>> blocks;  // that somebody has
  std::vector<BlockRef> kept;                      // for ever, if keep_all
  std::vector<BlockRef> in_use;                    // by the order, behind what is foreseen
  std::atomic<int64_t> blocks_read{0};
  std::vector<std::thread> threads;

  std::size_t block_of(int64_t row) const;
  BlockRef block_for(std::size_t number);
  void read_first_block();
  void take_what_is_there();
  void check_order() const;

  void push(std::vector<int64_t> rows);
  void restart(const std::vector<int64_t>& rows);
  void forget();
  void clear_reads();
  bool far_enough() const;
  void look_ahead();

  void read(std::unique_lock<std::mutex>& lock, const BlockRef& block);
  [[noreturn]] void throw_at(const Ahead& step, std::size_t block,
                             const std::exception_ptr& reason) const;
  void put_together(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Ahead>& step);
  bool worth_waking();
  std::size_t batches_ahead() const { return static_cast<std::size_t>(options.prefetch) + 1; }
  bool assemble_one(std::unique_lock<std::mutex>& lock, std::size_t most);
  BlockRef next_read();
  bool read_one(std::unique_lock<std::mutex>& lock);
  bool help(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Ahead>& step);
  void work();
};

}  // namespace af::train
