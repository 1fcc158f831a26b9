// SPDX-License-Identifier: Apache-2.0
// What DataParallel::checkpoint() saves: shares of all ranks, their random numbers, and nothing of
// ranks that have drifted apart.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <functional>
#include <map>
#include <mutex>

#include "af/train/data_parallel.h"
#include "common/atomic_file.h"
#include "common/error.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

// 1.2 MB, and twice as much of Adam: every rank of three has a share. Its loss draws random
// numbers, as dropout does.
struct ModelImpl : torch::nn::Module {
  ModelImpl() : weight(register_parameter("weight", at::ones({300, 1000}))) {}
  at::Tensor loss() { return (weight * at::rand({300, 1000})).pow(2).mean(); }
  at::Tensor weight;
};
TORCH_MODULE(Model);

struct Training {
  Training(Communicator& world, const fs::path& root)
      : saver(CheckpointDirectory(root)), replicas(*model, world) {
    replicas.keep("optimizer", adam);
    replicas.save_with(saver);
  }
  void step() {
    replicas.zero_grad(1);
    const at::Tensor loss = model->loss();
    loss.backward();
    replicas.step(1, loss, adam);
  }
  Model model;
  torch::optim::Adam adam{model->parameters(), torch::optim::AdamOptions(0.01)};
  BackgroundSaver saver;
  DataParallel replicas;
};

class ReplicaCheckpointTest : public testing::Test {
 protected:
  ReplicaCheckpointTest() { at::set_num_threads(1); }
  TemporaryDirectory temporary_;
};

// Which rank a part of state.pt comes from is told by a value that each rank has filled with its
// number. It is most of the state, so that a third of the file has some of it.
TEST_F(ReplicaCheckpointTest, AllRanksWriteOneStateWithTheirRandomNumbers) {
  constexpr int kRanks = 3;
  test::with_threads(test::one_node(kRanks), [&](Communicator& world) {
    const at::Tensor writer = at::empty({3'000'000});
    Training training(world, temporary_ / "checkpoints");
    training.replicas.keep("writer", writer);
    for (int64_t step = 1; step <= 3; ++step) {
      training.step();
      writer.fill_(world.rank());
      training.replicas.checkpoint();
    }
    training.replicas.finish();
    // The ranks read it all, while rank 0 holds back its end.
    const auto found = training.saver.directory().find_newest();
    ASSERT_TRUE(found);
    ASSERT_EQ(found->step, 3);
    const State state = read_state(found->path / "state.pt");
    ASSERT_TRUE(state.at("model").toGenericDict().at("weight").toTensor().equal(
        training.model->weight.detach()));
    ASSERT_EQ(state.at("random").toGenericDict().size(), std::size_t{kRanks});
    const at::Tensor written = state.at("writer").toTensor();
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_GT(written.eq(rank).sum().item<int64_t>(), written.numel() / 10)
          << "rank " << rank << " wrote no share";
    world.barrier().synchronize();
  });
}

TEST_F(ReplicaCheckpointTest, WithoutACommonDirectoryRank0SavesAlone) {
  test::with_threads(test::one_node(2), [&](Communicator& world) {
    Training training(world, temporary_ / std::to_string(world.rank()));
    training.step();
    training.replicas.checkpoint();
    training.replicas.finish();
  });
  const auto found = CheckpointDirectory(temporary_ / "0").find_newest();
  ASSERT_TRUE(found);
  EXPECT_EQ(read_state(found->path / "state.pt").at("step").toInt(), 1);
  EXPECT_FALSE(fs::exists(temporary_ / "1"));
  int left = 0;
  for (const auto& entry : fs::directory_iterator(temporary_ / "0"))
    left += entry.path().filename().string()[0] == '.' ? 1 : 0;
  EXPECT_EQ(left, 0) << "the directory for the shares is still there";
}

TEST_F(ReplicaCheckpointTest, ParametersThatDriftedApartAreNoCheckpoint) {
  std::mutex mutex;
  std::map<int, std::string> said;
  test::with_threads(test::one_node(3), [&](Communicator& world) {
    Training training(world, temporary_ / "checkpoints");
    training.step();
    {
      const at::NoGradGuard no_grad;
      if (world.rank() == 2) training.model->weight[17][4] += 1e-6;
    }
    try {
      training.replicas.checkpoint();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      said[world.rank()] = error.what();
    }
  });
  ASSERT_EQ(said.size(), 3U);
  for (const auto& [rank, text] : said)
    EXPECT_NE(text.find("the parameters of rank 2 are not those of rank 0"), std::string::npos)
        << rank << ": " << text;
  EXPECT_FALSE(CheckpointDirectory(temporary_ / "checkpoints").find_newest());
}

// To the bit, also what is random in it.
TEST_F(ReplicaCheckpointTest, ATrainingGoesOnAsIfNeverStopped) {
  at::Tensor straight;
  test::with_threads(test::one_node(1), [&](Communicator& world) {
    Training training(world, temporary_ / "checkpoints");
    for (int step = 0; step < 5; ++step) {
      training.step();
      if (step == 2) training.replicas.checkpoint();
    }
    training.replicas.finish();
    straight = training.model->weight.detach().clone();
  });
  test::with_threads(test::one_node(1), [&](Communicator& world) {
    Training training(world, temporary_ / "checkpoints");
    ASSERT_TRUE(training.replicas.resume());
    ASSERT_EQ(training.replicas.steps(), 3);
    for (int step = 3; step < 5; ++step) training.step();
    ASSERT_TRUE(training.model->weight.detach().equal(straight));
  });
}

}  // namespace
}  // namespace af::train
