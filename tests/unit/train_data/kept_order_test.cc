// SPDX-License-Identifier: Apache-2.0
// A training on HDF5 files by windows, kept by DataParallel: any world goes on from its state.pt.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "af/train/data_loader.h"
#include "af/train/data_parallel.h"
#include "af/train/hdf5_blocks.h"
#include "af/train/state_file.h"
#include "af/train/window_dealer.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_data/hdf5_writer.h"

namespace af::train {
namespace {

constexpr int64_t kRows = 403;

class KeptOrder : public testing::Test {
 protected:
  void SetUp() override {
    Hdf5Writer file(path());
    file.put_counting("x", H5T_IEEE_F32LE, {kRows, 2}, {{16, 2}, true, 4, false});
    file.put_counting("row", H5T_STD_I32LE, {kRows}, {{16}, true, 4, false});
  }
  std::string path() const { return (temporary_ / "a.h5").string(); }
  std::string state() const { return (temporary_ / "state.pt").string(); }

  // Trains `steps` steps (-1: to the end of the epoch) from the state, if there is one, and saves.
  void train(int world, int steps) {
    const bool resume = std::filesystem::exists(state());
    test::with_threads(test::one_node(world), [&](Communicator& communicator) {
      torch::nn::Linear model(2, 1);
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1e-9));
      const auto reader = std::make_shared<Hdf5Blocks>(
          std::vector<std::string>{path()},
          std::vector<Hdf5Column>{{.dataset = "x"}, {.dataset = "row"}},
          Hdf5Options{.block_rows = 16});
      WindowDealer order(reader->block_rows(), 24, 5, {.window_blocks = 2});
      DataLoader loader(reader, order, {.types = {{"x", at::kFloat}}});
      DataParallel replicas(*model, communicator);
      replicas.keep("optimizer", sgd);
      replicas.keep("data", order);
      if (resume) replicas.load(read_state(state()));
      for (int step = 0; step != steps; ++step) {
        const auto rows = replicas.next(0);
        if (!rows) break;
        const Batch batch = loader.load(*rows);
        replicas.zero_grad();
        at::Tensor loss;
        if (batch.rows() > 0) {
          loss = model->forward(batch["x"]).mean();
          loss.backward();
        }
        replicas.step(batch.rows(), loss, sgd);
        const std::lock_guard lock(mutex_);
        const at::Tensor seen = batch["row"];
        seen_.insert(seen_.end(), seen.data_ptr<int32_t>(),
                     seen.data_ptr<int32_t>() + seen.numel());
      }
      communicator.barrier().synchronize();  // all have read it
      if (communicator.rank() == 0) write_state(state(), replicas.state());
    });
  }

  TemporaryDirectory temporary_;
  std::mutex mutex_;
  std::vector<int32_t> seen_;
};

TEST_F(KeptOrder, AnyWorldGoesOnWithTheRowsThatAreLeft) {
  train(3, 5);
  EXPECT_EQ(seen_.size(), 5U * 24);
  const State saved = read_state(state());
  const State data = saved.at("data").toGenericDict();
  EXPECT_EQ(data.at("position").toInt(), 5 * 24);
  EXPECT_FALSE(data.contains("dealt_to"));
  train(1, 3);
  train(4, -1);
  std::sort(seen_.begin(), seen_.end());
  std::vector<int32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen_, all);
}

}  // namespace
}  // namespace af::train
