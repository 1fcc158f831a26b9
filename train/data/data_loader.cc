// SPDX-License-Identifier: Apache-2.0
#include "af/train/data_loader.h"

#include <ATen/Context.h>

#include <algorithm>
#include <utility>

#include "af/train/trace.h"
#include "common/error.h"
#include "train/data/data_loader_impl.h"

namespace af::train {

DataLoader::Impl::Impl(std::shared_ptr<const BlockReader> the_reader, DataOrder& the_order,
                       LoaderOptions the_options)
    : reader(std::move(the_reader)), order(the_order), options(std::move(the_options)) {
  if (!reader) throw Error("a data loader needs a reader");
  if (options.threads < 0 || options.prefetch < 0)
    throw Error::format("a data loader with {} threads and {} batches ahead", options.threads,
                        options.prefetch);
  block_rows = reader->block_rows();
  int64_t rows = 0;
  for (const int64_t count : block_rows) {
    first_rows.push_back(rows);
    rows += count;
  }
  if (!block_rows.empty()) {
    even = block_rows.front();
    for (std::size_t i = 0; i + 1 < block_rows.size(); ++i)
      if (block_rows[i] != even || block_rows.back() > even) even = 0;
  }
  if (rows != order.rows())
    throw Error::format("the order deals {} rows, and the reader has {}", order.rows(), rows);
  if (order.blocks() != nullptr && *order.blocks() != block_rows)
    throw Error("the order deals other blocks than the reader has: make it of block_rows()");
  blocks.resize(block_rows.size());
  marks.resize(block_rows.size());
  if (rows == 0) return;
  read_first_block();
  const std::size_t all = static_cast<std::size_t>(rows) * assembly->row_bytes();
  keep_all = reader->in_memory() || all <= options.memory_bytes;
  if (!keep_all && order.blocks() == nullptr)
    throw Error::format(
        "an order by row takes rows from everywhere, and the data ({} MiB) is more than may be "
        "kept in memory ({} MiB): deal it by windows (WindowDealer), or give the loader more "
        "memory_bytes",
        all >> 20, options.memory_bytes >> 20);
  if (reader->in_memory())
    take_what_is_there();
  else if (keep_all)
    kept.resize(block_rows.size());
  for (int i = 0; i < options.threads; ++i) threads.emplace_back([this] { work(); });
}

DataLoader::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void DataLoader::Impl::read_first_block() {
  std::size_t first = 0;
  while (block_rows[first] == 0) ++first;
  Batch example = reader->read_block(static_cast<int64_t>(first));
  ++blocks_read;
  assembly.emplace(example, options.types, options.pinned.value_or(at::hasCUDA()));
  auto block = std::make_shared<LoadedBlock>();
  block->number = static_cast<int64_t>(first);
  block->first_row = first_rows[first];
  block->rows = block_rows[first];
  assembly->take(std::move(example), *block);
  block->state = LoadedBlock::State::here;
  in_use = {block};  // until it is seen whether it is needed soon
  blocks[first] = block;
}

// Blocks that only point into memory, joined where they lie side by side: mostly to one.
void DataLoader::Impl::take_what_is_there() {
  for (std::size_t number = 0; number < block_rows.size(); ++number) {
    if (block_rows[number] == 0) continue;
    auto block = std::make_shared<LoadedBlock>();
    block->number = static_cast<int64_t>(number);
    block->first_row = first_rows[number];
    block->rows = block_rows[number];
    block->state = LoadedBlock::State::here;
    assembly->take(reader->read_block(block->number), *block);
    if (there.empty() || !assembly->join(*there.back(), *block)) there.push_back(std::move(block));
  }
  in_use.clear();
  block_rows.clear();  // and from now on these pieces are the blocks
  first_rows.clear();
  for (const BlockRef& block : there) {
    block_rows.push_back(block->rows);
    first_rows.push_back(block->first_row);
  }
  even = there.size() == 1 ? order.rows() : 0;
  marks.assign(there.size(), 0);
  blocks_read = 0;
}

std::size_t DataLoader::Impl::block_of(int64_t row) const {
  if (even > 0) return static_cast<std::size_t>(row / even);
  return static_cast<std::size_t>(std::upper_bound(first_rows.begin(), first_rows.end(), row) -
                                  first_rows.begin() - 1);
}

// Under the lock. A block that is not there is put into the queue.
BlockRef DataLoader::Impl::block_for(std::size_t number) {
  if (!there.empty()) return there[number];
  BlockRef block = blocks[number].lock();
  if (!block) {
    block = std::make_shared<LoadedBlock>();
    block->number = static_cast<int64_t>(number);
    block->first_row = first_rows[number];
    block->rows = block_rows[number];
    blocks[number] = block;
  }
  if (keep_all) kept[number] = block;
  if (block->state == LoadedBlock::State::wanted && !block->queued) {
    block->queued = true;
    reads.push_back(block);
  }
  return block;
}

DataLoader::DataLoader(std::shared_ptr<const BlockReader> reader, DataOrder& order,
                       LoaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(reader), order, std::move(options))) {}

DataLoader::~DataLoader() = default;

Batch DataLoader::load(const std::vector<int64_t>& rows) {
  const TraceSpan span(TraceKind::data, "wait for data");
  Impl& self = *impl_;
  if (!self.assembly) {
    if (!rows.empty()) throw Error::format("the data has no row {}", rows.front());
    return self.nothing;
  }
  std::unique_lock lock(self.mutex);
  if (self.ahead.empty() || self.ahead.front()->rows != rows) {
    self.restart(rows);
    self.look_ahead();
    self.changed.notify_all();
  }
  const std::shared_ptr<Ahead> step = self.ahead.front();
  while (step->state != Ahead::State::done)
    // While another thread has this step in work, the next one is a better use of the time than
    // sleep.
    if (!self.help(lock, step) && !self.assemble_one(lock, self.batches_ahead()))
      self.changed.wait(lock);
  (void)self.next_read();
  if (step->error) {
    self.forget();
    std::rethrow_exception(step->error);
  }
  self.ahead.pop_front();
  self.rows_ahead -= step->rows.size();
  self.look_ahead();
  if (self.worth_waking()) self.changed.notify_all();
  return std::move(step->batch);
}

std::optional<Batch> DataLoader::next(int64_t epoch) {
  Impl& self = *impl_;
  if (self.delivered && self.order.in_step()) self.order.complete();
  self.delivered = false;
  const auto rows = self.order.next(epoch);
  if (!rows) return std::nullopt;
  Batch batch = load(*rows);
  self.delivered = true;
  return batch;
}

int64_t DataLoader::blocks_read() const {
  return impl_->blocks_read;
}

}  // namespace af::train
