// SPDX-License-Identifier: Apache-2.0
// Full checkpoints of sharded trainings: sharded or not, at any world size, it goes on the same.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fstream>

#include "af/train/checkpoint.h"
#include "af/train/flat_optimizer.h"
#include "af/train/module_state.h"
#include "af/train/state_file.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_fsdp/sharded_chain.h"

namespace af::train::test {
namespace {

class FsdpState : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  const TemporaryDirectory directory_;
};

// Goes on with the training in `from`, if that is not empty, for steps [first, last); sharded over
// `ranks`. Its state is then in `to`.
template <typename Adam>
void go_on_sharded(const EqualityCase& one, int ranks, const std::string& from, int64_t first,
                   int64_t last, const std::string& to) {
  with_threads(one_node(ranks), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
    fsdp.keep("optimizer", adam);
    if (!from.empty()) {
      EXPECT_EQ(fsdp.load(from).at("step").toInt(), first);
    }
    for (int64_t step = first; step < last; ++step)
      sharded_step(fsdp, *model, one, one.share(step, world.rank(), ranks), adam);
    State more = make_state();
    more.insert("step", last);
    fsdp.save(to, more);
  });
}

// In one process.
void go_on_whole(const EqualityCase& one, const std::string& from, int64_t first, int64_t last,
                 const std::string& to) {
  const auto model = one.make();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(1e-3));
  const State before = read_state(from);
  load_into(*model, before.at("model").toGenericDict());
  load_into(adam, *model, before.at("optimizer").toGenericDict());
  for (int64_t step = first; step < last; ++step) {
    const Batch all = one.whole(step);
    adam.zero_grad();
    one.loss(model->forward(all.x), all.y).backward();
    adam.step();
  }
  State after = make_state();
  after.insert("model", state_of(*model));
  after.insert("optimizer", state_of(adam, *model));
  after.insert("step", last);
  write_state(to, after);
}

TEST_F(FsdpState, ShardedOrNotAtAnyWorldSizeItIsTheSameTraining) {
  const auto file = [&](int part) { return (directory_ / std::to_string(part)).string(); };
  for (const EqualityCase& one : equality_cases(at::kDouble)) {
    go_on_sharded<torch::optim::Adam>(one, 2, "", 0, 4, file(1));
    go_on_whole(one, file(1), 4, 8, file(2));
    go_on_sharded<torch::optim::Adam>(one, 4, file(2), 8, 12, file(3));
    go_on_sharded<FlatAdam>(one, 3, file(3), 12, 16, file(4));
    go_on_sharded<torch::optim::Adam>(one, 1, file(4), 16, 20, file(5));
    const auto model = one.make();
    const State state = read_state(file(5));
    load_into(*model, state.at("model").toGenericDict());
    EXPECT_LT(largest_difference(values_of(*model), train_alone(one, 20)), 1e-10) << one.name;
    const State moments = state.at("optimizer").toGenericDict();
    EXPECT_EQ(moments.size(), model->parameters().size());
    EXPECT_EQ(
        moments.at(model->named_parameters().front().key()).toGenericDict().at("step").toInt(), 20);
  }
}

TEST_F(FsdpState, ACheckpointOfADirectory) {
  const EqualityCase one = equality_cases(at::kFloat).at(0);
  const CheckpointDirectory checkpoints(directory_ / "checkpoints");
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    const Values before = whole_values(fsdp);
    State more = make_state();
    more.insert("step", int64_t{7});
    more.insert("best", at::full({1}, 0.5));
    fsdp.save(checkpoints, 7, more);
    torch::optim::SGD sgd(fsdp.parameters(), torch::optim::SGDOptions(0.1));
    sharded_step(fsdp, *model, one, one.share(0, world.rank(), 2), sgd);
    EXPECT_GT(largest_difference(whole_values(fsdp), before), 0);
    const auto newest = checkpoints.find_newest();
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, 7);
    EXPECT_EQ(fsdp.load(newest->path / "state.pt").at("step").toInt(), 7);
    EXPECT_EQ(largest_difference(whole_values(fsdp), before), 0);
  });
  EXPECT_EQ(read_state(checkpoints.path_of(7) / "state.pt").at("best").toTensor().item<float>(),
            0.5F);
}

// Every rank hears of it, and nobody waits; the training goes on.
TEST_F(FsdpState, ARankZeroThatCannotWriteIsAnErrorOnAll) {
  const EqualityCase one = equality_cases(at::kFloat).at(0);
  std::ofstream(directory_ / "file") << "no directory";
  with_threads(one_node(3), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    const auto text = [&](const std::function<void()>& save) -> std::string {
      try {
        save();
      } catch (const std::exception& error) {
        return error.what();
      }
      return {};
    };
    const std::string plain = text([&] { fsdp.save(directory_ / "nowhere/state.pt"); });
    EXPECT_EQ(plain.rfind("rank 0: ", 0), 0u) << plain;
    EXPECT_NE(plain.find("nowhere/state.pt"), std::string::npos) << plain;
    const CheckpointDirectory under_a_file(directory_ / "file/checkpoints");
    const std::string checkpoint = text([&] { fsdp.save(under_a_file, 1); });
    EXPECT_EQ(checkpoint.rfind("rank 0: ", 0), 0u) << checkpoint;
    torch::optim::SGD sgd(fsdp.parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_EQ(sharded_step(fsdp, *model, one, one.share(0, world.rank(), 3), sgd).samples, 24);
  });
}

TEST_F(FsdpState, AStateOfAnotherModelIsRefusedAndChangesNothing) {
  const auto cases = equality_cases(at::kFloat);
  State state = make_state();
  state.insert("model", state_of(*cases.at(2).make()));
  write_state(directory_ / "guide.pt", state);
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = cases.at(0).make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    const Values before = whole_values(fsdp);
    try {
      fsdp.load(directory_ / "guide.pt");
      ADD_FAILURE() << "loaded";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("model/part0.linear.weight"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(largest_difference(whole_values(fsdp), before), 0);
    EXPECT_ANY_THROW(fsdp.load(directory_ / "none.pt"));
  });
}

}  // namespace
}  // namespace af::train::test
