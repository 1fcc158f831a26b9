// SPDX-License-Identifier: Apache-2.0
#include "af/train/data_loader.h"

#include <ATen/Context.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "af/train/trace.h"
#include "common/error.h"
#include "train/data/batch_assembly.h"

namespace af::train {
namespace {

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

// Beside its numbers, what a row that is foreseen costs.
constexpr std::size_t kBytesOfForeseenRow = sizeof(int64_t) + sizeof(uint32_t);
// In one call; so that the first batch does not wait for a look far ahead.
constexpr int kStepsForeseenAtOnce = 8;

}  // namespace

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

// What there is ---------------------------------------------------------------------------------

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

// Foreseeing: on the caller's thread, under the lock ---------------------------------------------

void DataLoader::Impl::push(std::vector<int64_t> rows) {
  auto step = std::make_shared<Ahead>();
  const int64_t all = order.rows();
  for (const int64_t row : rows)
    if (row < 0 || row >= all) throw Error::format("the data has no row {}", row);
  const bool one_piece = there.size() == 1;
  std::vector<std::size_t> marked;
  if (one_piece)
    step->blocks = there;
  else
    step->block_of_row.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size() && !one_piece; ++i) {
    const std::size_t number = block_of(rows[i]);
    if (marks[number] == 0) {
      marked.push_back(number);
      step->blocks.push_back(block_for(number));
      marks[number] = static_cast<uint32_t>(step->blocks.size());
    }
    step->block_of_row.push_back(marks[number] - 1);
  }
  for (const std::size_t number : marked) marks[number] = 0;
  step->rows = std::move(rows);
  rows_ahead += step->rows.size();
  ahead.push_back(std::move(step));
}

// What was foreseen does not come: begin anew, with the blocks that are there.
void DataLoader::Impl::restart(const std::vector<int64_t>& rows) {
  clear_reads();
  const auto before = std::move(ahead);  // their blocks stay until the new ones have theirs
  const auto used_before = in_use;
  ahead.clear();
  rows_ahead = 0;
  foreseen.reset();
  push(rows);
  if (options.threads == 0 && !there.empty()) return;  // nothing is read, and nothing ahead
  foreseen = order.clone();
  if (foreseen->in_step()) foreseen->complete();
  if (!there.empty()) return;
  in_use.clear();
  for (const int64_t number : foreseen->blocks_in_use())
    if (BlockRef block = blocks[static_cast<std::size_t>(number)].lock()) in_use.push_back(block);
}

void DataLoader::Impl::clear_reads() {
  for (const auto& read : reads)
    if (const BlockRef block = read.lock()) block->queued = false;
  reads.clear();
}

void DataLoader::Impl::forget() {
  clear_reads();
  ahead.clear();
  rows_ahead = 0;
  in_use.clear();
  for (auto& block : kept)
    if (block && block->error) block.reset();
  for (auto& block : blocks)
    if (const BlockRef one = block.lock(); one && one->error) block.reset();
  foreseen.reset();
}

bool DataLoader::Impl::far_enough() const {
  if (options.threads == 0) return true;
  if (ahead.empty()) return false;
  if (ahead.size() <= static_cast<std::size_t>(options.prefetch)) return false;
  if (reader->in_memory()) return true;
  const std::size_t row = assembly->row_bytes() + kBytesOfForeseenRow;
  return (rows_ahead + rows_ahead / ahead.size()) * row > options.memory_bytes;
}

void DataLoader::Impl::look_ahead() {
  for (int steps = 0; steps < kStepsForeseenAtOnce && !far_enough(); ++steps) {
    auto rows = foreseen->next(foreseen->epoch());
    if (!rows) {
      const int64_t epoch = foreseen->epoch();
      foreseen->finish_epoch(epoch);
      rows = foreseen->next(epoch + 1);
      if (!rows) return;
    }
    push(std::move(*rows));
    foreseen->complete();
    if (!there.empty()) continue;
    std::vector<BlockRef> still;
    for (const int64_t number : foreseen->blocks_in_use())
      if (BlockRef block = blocks[static_cast<std::size_t>(number)].lock()) still.push_back(block);
    in_use = std::move(still);
  }
}

// Work: by any thread -----------------------------------------------------------------------------

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

// The class ---------------------------------------------------------------------------------------

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
