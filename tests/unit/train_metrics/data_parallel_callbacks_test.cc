// SPDX-License-Identifier: Apache-2.0
// What DataParallel tells its callbacks, and an early stop through it.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "af/train/data_parallel.h"
#include "af/train/dealer.h"
#include "af/train/early_stop.h"
#include "af/train/profile.h"
#include "af/train/trace.h"
#include "af/train/validation.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

class Diary : public Callback {
 public:
  explicit Diary(std::vector<std::string>& lines) : lines_(lines) {}
  void on_start(const StartInfo& info) override {
    add("start", info.step);
    add("world", info.world_size);
  }
  void on_step(const StepInfo& info) override { add("step", info.step, info.samples); }
  void on_epoch(const EpochInfo& info) override { add("epoch", info.epoch, info.step); }
  void on_end(const EndInfo& info) override { add("end", info.step); }

 private:
  void add(const std::string& event, int64_t a, int64_t b = -1) {
    lines_.push_back(event + " " + std::to_string(a) + (b < 0 ? "" : " " + std::to_string(b)));
  }
  std::vector<std::string>& lines_;
};

// 5 rows in batches of 2; one epoch after the other until somebody wants to stop.
void train(Communicator& world, Callbacks& callbacks, const std::shared_ptr<EarlyStop>& stop,
           const std::vector<double>& losses) {
  torch::nn::Linear model(1, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  Dealer dealer(5, 2, 1);
  DataParallelOptions options;
  options.callbacks = &callbacks;
  DataParallel replicas(*model, world, options);
  replicas.keep("data", dealer);
  replicas.keep("early stop", at::from_blob(stop->values(), {EarlyStop::kValues}, at::kDouble));
  replicas.begin();
  for (int64_t epoch = 0; epoch < 10 && !callbacks.stop_asked(); ++epoch) {
    while (const auto rows = replicas.next(epoch)) {
      replicas.zero_grad();
      at::Tensor loss;
      if (!rows->empty()) {
        loss = model->forward(at::ones({static_cast<int64_t>(rows->size()), 1})).square().mean();
        loss.backward();
      }
      replicas.step(static_cast<int64_t>(rows->size()), loss, optimizer);
    }
    const auto tested = over_ranks(replicas, Mean(), [&](Mean& mean, int rank, int) {
      if (rank == 0) mean.add(losses.at(static_cast<std::size_t>(epoch)));
    });
    callbacks.report({replicas.steps(), epoch, {{"loss", tested.value()}}});
    replicas.checkpoint();
  }
  const State saved = replicas.state();
  EXPECT_EQ(saved.at("early stop").toTensor()[1].item<double>(), stop->best());
  replicas.finish();
}

TEST(DataParallelCallbacks, HearOfEveryTurnAndAllRanksStopTogether) {
  std::vector<std::vector<std::string>> lines(3);
  test::with_threads(test::one_node(3), [&](Communicator& world) {
    Callbacks callbacks;
    const auto stop = std::make_shared<EarlyStop>("loss", EarlyStopOptions{.patience = 1});
    callbacks.add(std::make_shared<Diary>(lines[static_cast<std::size_t>(world.rank())]));
    callbacks.add(stop);
    train(world, callbacks, stop, {3, 4});
  });
  const std::vector<std::string> all = {"start 0",  "world 3",   "step 1 2", "step 2 2",
                                        "step 3 1", "epoch 0 3", "step 4 2", "step 5 2",
                                        "step 6 1", "epoch 1 6", "end 6"};
  for (const auto& rank : lines) EXPECT_EQ(rank, all);
}

TEST(DataParallelCallbacks, AProfileHasComputeCommunicationAndTheOptimizer) {
  const TemporaryDirectory directory;
  test::with_threads(test::one_node(1), [&](Communicator& world) {
    Callbacks callbacks;
    const auto stop = std::make_shared<EarlyStop>("loss", EarlyStopOptions{.patience = 1});
    callbacks.add(std::make_shared<Profile>(directory.path(), parse_profiled_steps("2-4")));
    callbacks.add(stop);
    train(world, callbacks, stop, {3, 4});
  });
  EXPECT_FALSE(tracing());
  std::ifstream file(directory / "steps-2-4-rank-0.json");
  const auto trace = nlohmann::json::parse(file);
  std::map<std::string, int> spans;
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X" || event["ph"] == "b") ++spans[event["name"]];
  EXPECT_EQ(spans, (std::map<std::string, int>{{"all_reduce", 3},
                                               {"forward and backward", 3},
                                               {"optimizer", 3},
                                               {"step 2", 1},
                                               {"step 3", 1},
                                               {"step 4", 1},
                                               {"wait for gradients", 3}}));
}

}  // namespace
}  // namespace af::train
