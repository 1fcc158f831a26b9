// SPDX-License-Identifier: Apache-2.0
// The work of a DataLoader: by any thread.
#include <algorithm>

#include "common/error.h"
#include "train/data/data_loader_impl.h"

namespace af::train {

void DataLoader::Impl::read(std::unique_lock<std::mutex>& lock, const BlockRef& block) {
  block->state = LoadedBlock::State::reading;
  lock.unlock();
  try {
    assembly->take(reader->read_block(block->number), *block);
    ++blocks_read;
  } catch (...) {
    block->error = std::current_exception();
  }
  lock.lock();
  block->state = LoadedBlock::State::here;
  changed.notify_all();
}

// Says which row of the step it is that lies in a block that cannot be read.
void DataLoader::Impl::throw_at(const Ahead& step, std::size_t block,
                                const std::exception_ptr& reason) const {
  const auto place = std::find(step.block_of_row.begin(), step.block_of_row.end(), block);
  const auto row = static_cast<std::size_t>(place - step.block_of_row.begin());
  try {
    std::rethrow_exception(reason);
  } catch (const std::exception& error) {
    throw Error::format("{} cannot be read: {}", reader->describe_row(step.rows[row]),
                        error.what());
  }
}

void DataLoader::Impl::put_together(std::unique_lock<std::mutex>& lock,
                                    const std::shared_ptr<Ahead>& step) {
  step->state = Ahead::State::in_work;
  lock.unlock();
  try {
    for (std::size_t i = 0; i < step->blocks.size(); ++i) {
      const std::exception_ptr error = step->blocks[i]->error;
      if (error) throw_at(*step, i, error);
    }
    step->batch = assembly->assemble(step->rows, step->block_of_row, step->blocks);
  } catch (...) {
    step->error = std::current_exception();
  }
  step->blocks.clear();
  lock.lock();
  step->state = Ahead::State::done;
  changed.notify_all();
}

// One of the next `most` batches whose blocks are there.
bool DataLoader::Impl::assemble_one(std::unique_lock<std::mutex>& lock, std::size_t most) {
  for (std::size_t i = 0; i < std::min(most, ahead.size()); ++i) {
    const std::shared_ptr<Ahead> step = ahead[i];
    if (step->state != Ahead::State::waiting || !step->ready()) continue;
    put_together(lock, step);
    return true;
  }
  return false;
}

// The next block to be read, left in the queue; those in front of it that the caller has read
// itself, or that nobody wants any more, go.
BlockRef DataLoader::Impl::next_read() {
  for (; !reads.empty(); reads.pop_front())
    if (BlockRef block = reads.front().lock(); block && block->state == LoadedBlock::State::wanted)
      return block;
  return nullptr;
}

bool DataLoader::Impl::read_one(std::unique_lock<std::mutex>& lock) {
  const BlockRef block = next_read();
  if (!block) return false;
  reads.pop_front();
  read(lock, block);
  return true;
}

// On the caller's thread, what this step needs.
bool DataLoader::Impl::help(std::unique_lock<std::mutex>& lock,
                            const std::shared_ptr<Ahead>& step) {
  if (step->state != Ahead::State::waiting) return false;
  for (const BlockRef& block : step->blocks)
    if (block->state == LoadedBlock::State::wanted) {
      read(lock, BlockRef(block));
      return true;
    }
  if (!step->ready()) return false;
  put_together(lock, step);
  return true;
}

// A thread that wakes for each batch costs more than small batches do: so for a few at a time. What
// is not ready when it is asked for, the caller does.
bool DataLoader::Impl::worth_waking() {
  if (threads.empty()) return false;
  if (next_read()) return true;
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < std::min(batches_ahead(), ahead.size()); ++i)
    waiting += ahead[i]->state == Ahead::State::waiting ? 1 : 0;
  return 2 * waiting >= batches_ahead();
}

void DataLoader::Impl::work() {
  std::unique_lock lock(mutex);
  while (!stop) {
    if (assemble_one(lock, batches_ahead())) continue;
    if (read_one(lock)) continue;
    changed.wait(lock);
  }
}

}  // namespace af::train
