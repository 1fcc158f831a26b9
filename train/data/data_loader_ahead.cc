// SPDX-License-Identifier: Apache-2.0
// What a DataLoader foresees: on the caller's thread, under the lock.
#include <utility>

#include "common/error.h"
#include "train/data/data_loader_impl.h"

namespace af::train {
namespace {

// Beside its numbers, what a row that is foreseen costs.
constexpr std::size_t kBytesOfForeseenRow = sizeof(int64_t) + sizeof(uint32_t);
// In one call; so that the first batch does not wait for a look far ahead.
constexpr int kStepsForeseenAtOnce = 8;

}  // namespace

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

}  // namespace af::train
