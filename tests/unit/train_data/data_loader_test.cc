// SPDX-License-Identifier: Apache-2.0
#include "af/train/data_loader.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>

#include "af/train/dealer.h"
#include "af/train/hdf5_blocks.h"
#include "af/train/window_dealer.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_data/hdf5_writer.h"

namespace af::train {
namespace {

using Rows = std::vector<int64_t>;

// A person's own source: row r has x = [r, r + 0.5] and y = r. It counts what is asked of it.
class Counting : public BlockReader {
 public:
  explicit Counting(Rows blocks) : blocks_(std::move(blocks)) {}

  Rows block_rows() const override { return blocks_; }
  Batch read_block(int64_t block) const override {
    ++reads_;
    int64_t first = 0;
    for (int64_t i = 0; i < block; ++i) first += blocks_[static_cast<size_t>(i)];
    if (block == broken) throw Error("the disk is gone");
    const int64_t rows = blocks_[static_cast<size_t>(block)];
    Batch batch;
    const at::Tensor numbers = at::arange(first, first + rows, at::kFloat);
    // Counted while somebody holds it.
    auto memory = std::make_shared<std::vector<float>>(static_cast<size_t>(rows) * 2);
    const at::Tensor x = at::from_blob(
        memory->data(), {rows, 2}, [this, memory](void*) { --alive_; }, at::kFloat);
    most_alive_ = std::max<int>(most_alive_, ++alive_);
    x.copy_(at::stack({numbers, numbers + 0.5}, 1));
    batch.add("x", x);
    batch.add("y", at::arange(first, first + rows, at::kInt));
    if (block == other_type) {
      Batch wrong;
      wrong.add("x", batch["x"].to(at::kDouble));
      wrong.add("y", batch["y"]);
      return wrong;
    }
    return batch;
  }
  std::string describe_row(int64_t row) const override {
    return "row " + std::to_string(row) + " of the counting source";
  }

  int reads() const { return reads_; }
  int most_alive() const { return most_alive_; }
  std::atomic<int64_t> broken{-1};
  std::atomic<int64_t> other_type{-1};

 private:
  Rows blocks_;
  mutable std::atomic<int> reads_{0};
  mutable std::atomic<int> alive_{0};
  mutable std::atomic<int> most_alive_{0};
};

Rows rows_of(const Batch& batch) {
  const at::Tensor y = batch["y"].to(at::kLong);
  return {y.data_ptr<int64_t>(), y.data_ptr<int64_t>() + y.numel()};
}

void expect_rows(const Batch& batch, const Rows& rows) {
  ASSERT_EQ(rows_of(batch), rows);
  const at::Tensor expected = at::tensor(rows, at::kLong).to(batch["x"].scalar_type());
  ASSERT_TRUE(batch["x"].select(1, 0).equal(expected));
  ASSERT_TRUE(batch["x"].select(1, 1).equal(expected + 0.5));
}

Rows uneven_blocks() {
  return {10, 10, 3, 0, 10, 10, 10, 7, 10, 10, 10, 1};  // 91 rows
}

class AnyThreads : public testing::TestWithParam<int> {};

TEST_P(AnyThreads, EveryRowOfAnEpochOnceAndNoBlockTwice) {
  const auto reader = std::make_shared<Counting>(uneven_blocks());
  WindowDealer order(reader->block_rows(), 8, 1, {.window_blocks = 3});
  // Less memory than the data, so that blocks come and go.
  DataLoader loader(reader, order, {.threads = GetParam(), .memory_bytes = 400});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Rows seen;
    while (const auto batch = loader.next(epoch)) {
      const Rows rows = rows_of(*batch);
      expect_rows(*batch, rows);
      seen.insert(seen.end(), rows.begin(), rows.end());
    }
    std::sort(seen.begin(), seen.end());
    Rows all(91);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
}

TEST_P(AnyThreads, NoBlockIsReadTwiceInAnEpoch) {
  const auto reader = std::make_shared<Counting>(Rows(100, 10));
  WindowDealer order(reader->block_rows(), 8, 1, {.window_blocks = 3});
  DataLoader loader(reader, order, {.threads = GetParam(), .prefetch = 2, .memory_bytes = 400});
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    while (const auto batch = loader.next(epoch)) expect_rows(*batch, rows_of(*batch));
  // The first one once more, to know what there is; and what was read ahead for the epoch that
  // does not come. What the next epoch needs soon may still be there from the one before.
  EXPECT_LE(reader->reads(), 300 + 1 + 6);
  EXPECT_GE(reader->reads(), 300 - 2 * 12);
}

TEST_P(AnyThreads, BatchesAreTheRowsThatAreAskedFor) {
  const auto reader = std::make_shared<Counting>(uneven_blocks());
  WindowDealer order(reader->block_rows(), 16, 1, {.window_blocks = 2});
  order.set_world(1, 3);
  DataLoader loader(reader, order, {.threads = GetParam()});
  for (int64_t epoch = 0; epoch < 2; ++epoch)
    while (const auto rows = order.next(epoch)) {
      expect_rows(loader.load(*rows), *rows);
      order.complete();
    }
  expect_rows(loader.load({90, 0, 22, 23, 22}), {90, 0, 22, 23, 22});
  EXPECT_THROW(loader.load({91}), Error);
  EXPECT_THROW(loader.load({-1}), Error);
  expect_rows(loader.load({5}), {5});
}

TEST_P(AnyThreads, AWorldThatChangesLosesNoBlockThatIsStillNeeded) {
  const auto reader = std::make_shared<Counting>(Rows(40, 10));
  WindowDealer order(reader->block_rows(), 6, 1, {.window_blocks = 4});
  order.set_world(0, 2);
  DataLoader loader(reader, order, {.threads = GetParam(), .memory_bytes = 600});
  for (int step = 0; step < 3; ++step) {
    const auto rows = *order.next(0);
    expect_rows(loader.load(rows), rows);
    order.complete();
  }
  order.change_world(0, {0}, false);
  const auto rows = *order.next(0);
  expect_rows(loader.load(rows), rows);
  const auto window = order.state().open.at(0);
  EXPECT_EQ(window.window, 0);  // it goes on with its own
  order.complete();
  while (const auto more = order.next(0)) {
    expect_rows(loader.load(*more), *more);
    order.complete();
  }
  EXPECT_LE(reader->reads(), 40 + 1 + 3 * 4);  // and those read ahead in vain
}

TEST_P(AnyThreads, AFullShuffleReadsEachBlockOnceForAllEpochs) {
  const auto reader = std::make_shared<Counting>(uneven_blocks());
  Dealer order(91, 8, 1);
  DataLoader loader(reader, order, {.threads = GetParam()});
  for (int64_t epoch = 0; epoch < 4; ++epoch)
    while (const auto batch = loader.next(epoch)) expect_rows(*batch, rows_of(*batch));
  EXPECT_EQ(reader->reads(), 11);
}

TEST_P(AnyThreads, AFailureComesOutWithItsRowAndTheNextCallTriesAgain) {
  const auto reader = std::make_shared<Counting>(Rows(10, 10));
  WindowDealer order(reader->block_rows(), 10, 1, {.window_blocks = 1});
  DataLoader loader(reader, order, {.threads = GetParam(), .memory_bytes = 300});
  reader->broken = order.clone()->next(0)->front() / 10 == 7 ? 6 : 7;
  int failed = 0;
  Rows seen;
  for (;;) {
    try {
      const auto batch = loader.next(0);
      if (!batch) break;
      const Rows rows = rows_of(*batch);
      seen.insert(seen.end(), rows.begin(), rows.end());
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("of the counting source cannot be read: the disk is gone"),
                std::string::npos)
          << text;
      if (++failed == 2) reader->broken = -1;
      ASSERT_LE(failed, 2);
    }
  }
  EXPECT_EQ(failed, 2);
  EXPECT_EQ(seen.size(), 100U);
}

TEST_P(AnyThreads, BlocksThatDoNotFitEachOtherAreAnError) {
  const auto reader = std::make_shared<Counting>(Rows(4, 10));
  reader->other_type = 2;
  WindowDealer order(reader->block_rows(), 40, 1, {.window_blocks = 4});
  DataLoader loader(reader, order, {.threads = GetParam()});
  try {
    loader.next(0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("block 2 has other columns"), std::string::npos)
        << error.what();
  }
}

TEST_P(AnyThreads, MemoryIsBounded) {
  const auto reader = std::make_shared<Counting>(Rows(200, 10));
  WindowDealer order(reader->block_rows(), 5, 1, {.window_blocks = 4});
  // A row has 12 bytes, and 12 of what is foreseen: 100 rows ahead, 10 blocks.
  DataLoader loader(reader, order, {.threads = GetParam(), .prefetch = 2, .memory_bytes = 2400});
  while (const auto batch = loader.next(0)) expect_rows(*batch, rows_of(*batch));
  // And the open window twice, and the very first block.
  EXPECT_LE(reader->most_alive(), 10 + 2 * 4 + 1);
}

TEST_P(AnyThreads, ItEndsWhileThreadsRead) {
  const auto reader = std::make_shared<Counting>(Rows(100, 1000));
  WindowDealer order(reader->block_rows(), 10, 1);
  for (int i = 0; i < 20; ++i) {
    DataLoader loader(reader, order, {.threads = GetParam()});
    (void)loader.next(i);
  }
}

INSTANTIATE_TEST_SUITE_P(DataLoader, AnyThreads, testing::Values(0, 1, 3));

TEST(DataLoader, ColumnsAreConverted) {
  Batch data;
  data.add("pixels", at::arange(12, at::kByte).view({4, 3}));
  data.add("label", at::tensor({3, 1, 2, 0}, at::kByte));
  data.add("mask", at::tensor({1, 0, 1, 1}, at::kByte).to(at::kBool));
  data.add("energy", at::tensor({0.5, 1.5, 2.5, 3.5}, at::kDouble));
  const auto reader = std::make_shared<TensorBlocks>(data, 3);
  Dealer order(4, 4, 1);
  DataLoader loader(reader, order,
                    {.types = {{"pixels", at::kFloat},
                               {"label", at::kLong},
                               {"mask", at::kFloat},
                               {"energy", at::kFloat}}});
  const Batch batch = loader.load({3, 0});
  EXPECT_TRUE(
      batch["pixels"].equal(at::tensor({9., 10., 11., 0., 1., 2.}, at::kFloat).view({2, 3})));
  EXPECT_TRUE(batch["label"].equal(at::tensor({0, 3}, at::kLong)));
  EXPECT_TRUE(batch["mask"].equal(at::tensor({1., 1.}, at::kFloat)));
  EXPECT_TRUE(batch["energy"].equal(at::tensor({3.5, 0.5}, at::kFloat)));
  EXPECT_THROW(DataLoader(reader, order, {.types = {{"energy", at::kLong}}}), Error);
  EXPECT_THROW(DataLoader(reader, order, {.types = {{"pixels", at::kHalf}}}), Error);
  try {
    DataLoader(reader, order, {.types = {{"labels", at::kLong}}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("pixels, label, mask, energy"), std::string::npos);
  }
}

TEST(DataLoader, ARankWithoutRowsGetsTensorsWithoutRows) {
  const auto reader = std::make_shared<Counting>(Rows{3});
  WindowDealer order({3}, 8, 1);
  order.set_world(3, 4);
  DataLoader loader(reader, order);
  int steps = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    while (const auto batch = loader.next(epoch)) {
      ++steps;
      EXPECT_EQ(batch->rows(), 0);
      EXPECT_EQ((*batch)["x"].sizes(), at::IntArrayRef({0, 2}));
    }
  EXPECT_EQ(steps, 3);
}

TEST(DataLoader, WithoutDataAnEpochIsOverAtOnce) {
  WindowDealer order({}, 8, 1);
  DataLoader loader(std::make_shared<Counting>(Rows{}), order);
  EXPECT_FALSE(loader.next(0));
  EXPECT_EQ(loader.load({}).rows(), 0);
  EXPECT_THROW(loader.load({0}), Error);
}

TEST(DataLoader, WhatDoesNotGoTogetherIsRefused) {
  const auto reader = std::make_shared<Counting>(Rows(10, 10));
  Dealer other(99, 8, 1);
  EXPECT_THROW(DataLoader(reader, other), Error);
  WindowDealer blocks(Rows(20, 5), 8, 1);
  EXPECT_THROW(DataLoader(reader, blocks), Error);
  Dealer order(100, 8, 1);
  try {
    DataLoader(reader, order, {.memory_bytes = 1000});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("WindowDealer"), std::string::npos) << error.what();
  }
  EXPECT_THROW(DataLoader(reader, order, {.threads = -1}), Error);
  EXPECT_THROW(DataLoader(nullptr, order), Error);
}

TEST(DataLoader, ATrainingGoesOnFromAStateInAnotherWorld) {
  const auto reader = std::make_shared<Counting>(Rows(30, 10));
  WindowDealer order(reader->block_rows(), 12, 1, {.window_blocks = 2});
  DataLoader loader(reader, order);
  Rows seen;
  const auto see = [&](const Batch& batch) {
    const Rows rows = rows_of(batch);
    seen.insert(seen.end(), rows.begin(), rows.end());
  };
  for (int step = 0; step < 7; ++step) see(*loader.next(0));
  order.complete();  // the seventh step is learned
  const OrderState saved = order.save(DataOrder::Scope::to_save);
  std::vector<std::unique_ptr<WindowDealer>> orders;
  std::vector<std::unique_ptr<DataLoader>> loaders;
  for (int rank = 0; rank < 3; ++rank) {
    orders.push_back(std::make_unique<WindowDealer>(reader->block_rows(), 12, 99,
                                                    WindowOptions{.window_blocks = 2}));
    orders.back()->restore(saved);
    orders.back()->set_world(rank, 3);
    loaders.push_back(std::make_unique<DataLoader>(reader, *orders.back()));
  }
  for (bool more = true; more;)
    for (auto& one : loaders) {
      const auto batch = one->next(0);
      more = batch.has_value();
      if (batch) see(*batch);
    }
  std::sort(seen.begin(), seen.end());
  Rows all(300);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(DataLoader, Hdf5FilesInBothOrders) {
  const TemporaryDirectory temporary;
  const std::string path = (temporary / "a.h5").string();
  Hdf5Writer file(path);
  std::vector<float> x;
  for (int i = 0; i < 500; ++i) x.insert(x.end(), {float(i), float(i) + 0.5F});
  file.put("x_gzip", H5T_IEEE_F32LE, {500, 2}, H5T_NATIVE_FLOAT, x.data(),
           {{32, 2}, true, 4, false});
  file.put("x_contiguous", H5T_IEEE_F32LE, {500, 2}, H5T_NATIVE_FLOAT, x.data());
  file.put_counting("y", H5T_STD_I32LE, {500});
  for (const char* dataset : {"x_gzip", "x_contiguous"}) {
    const auto reader = std::make_shared<Hdf5Blocks>(
        std::vector<std::string>{path},
        std::vector<Hdf5Column>{{.dataset = dataset, .name = "x"}, {.dataset = "y"}},
        Hdf5Options{.block_rows = 32});
    WindowDealer windows(reader->block_rows(), 40, 1, {.window_blocks = 2});
    DataLoader loader(reader, windows, {.threads = 2});
    int64_t rows = 0;
    while (const auto batch = loader.next(0)) {
      expect_rows(*batch, rows_of(*batch));
      rows += batch->rows();
    }
    EXPECT_EQ(rows, 500);
    Dealer by_row(500, 40, 1);
    // In no memory at all, where the file is mapped.
    DataLoader full(reader, by_row,
                    {.memory_bytes = reader->in_memory() ? 0 : std::size_t{1} << 20});
    while (const auto batch = full.next(0)) expect_rows(*batch, rows_of(*batch));
  }
}

TEST(BlockReader, RowsInOrder) {
  const Counting reader(uneven_blocks());
  Rows rows(20);
  std::iota(rows.begin(), rows.end(), 15);
  expect_rows(read_rows(reader, 15, 35), rows);
  EXPECT_EQ(read_rows(reader, 7, 7)["x"].sizes(), at::IntArrayRef({0, 2}));
  EXPECT_THROW(read_rows(reader, 80, 92), Error);
  EXPECT_THROW(read_rows(reader, -1, 2), Error);
}

TEST(BlockReader, BatchesSayWhatTheyHave) {
  Batch batch;
  batch.add("x", at::zeros({3, 2}));
  EXPECT_THROW(batch.add("x", at::zeros({3})), Error);
  EXPECT_THROW(batch.add("y", at::zeros({4})), Error);
  EXPECT_THROW(batch.add("z", at::scalar_tensor(1)), Error);
  EXPECT_THROW(batch["y"], Error);
  EXPECT_TRUE(batch.contains("x"));
  EXPECT_EQ(even_blocks(7, 3), (Rows{3, 3, 1}));
  EXPECT_THROW(even_blocks(7, 0), Error);
}

}  // namespace
}  // namespace af::train
