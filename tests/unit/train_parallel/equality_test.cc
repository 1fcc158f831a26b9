// SPDX-License-Identifier: Apache-2.0
// A training in any world is that of one process on the whole batch. Ranks are threads.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <optional>

#include "af/train/data_parallel.h"
#include "af/train/distributed_data_parallel.h"
#include "af/train/flat_optimizer.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/train_parallel/equality_models.h"
#include "tests/unit/train_parallel/replicated_chain.h"

namespace af::train {
namespace {

using af::test::with_threads;
using test::Batch;
using test::EqualityCase;
using test::Values;

constexpr int64_t kSteps = 50;
constexpr double kLearningRate = 1e-3;

using Train = std::function<Values(const EqualityCase&, Communicator&)>;

Values train_data_parallel(const EqualityCase& one, Communicator& world) {
  const auto model = one.make();
  DataParallelOptions options;
  options.bucket_bytes = 2000;
  DataParallel replicas(*model, world, options);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(kLearningRate));
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch mine = one.share(step, world.rank(), world.world_size());
    replicas.zero_grad(mine.rows());
    const at::Tensor loss = one.loss(model->forward(mine.x), mine.y);
    loss.backward();
    replicas.step(mine.rows(), loss, adam);
  }
  return test::values_of(*model);
}

// With an optimizer that divides by the samples in its own pass; DataParallel does it by itself.
Values train_flat(const EqualityCase& one, Communicator& world, bool elastic) {
  const auto model = one.make();
  FlatAdam adam(model->parameters(), torch::optim::AdamOptions(kLearningRate));
  std::optional<DistributedDataParallel> ddp;
  std::optional<DataParallel> replicas;
  if (elastic)
    replicas.emplace(*model, world);
  else
    ddp.emplace(*model, world).fold_scale_into(adam);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch mine = one.share(step, world.rank(), world.world_size());
    if (elastic) {
      replicas->zero_grad(mine.rows());
      const at::Tensor loss = one.loss(model->forward(mine.x), mine.y);
      loss.backward();
      replicas->step(mine.rows(), loss, adam);
    } else {
      ddp->zero_grad();
      ddp->backward(one.loss(model->forward(mine.x), mine.y), mine.rows());
      adam.step();
    }
  }
  return test::values_of(*model);
}

// The parameters of all ranks.
std::vector<Values> in_world(const af::test::Nodes& nodes, const EqualityCase& one,
                             const Train& train) {
  std::vector<Values> all(nodes.size());
  with_threads(nodes,
               [&](Communicator& world) { all[std::size_t(world.rank())] = train(one, world); });
  return all;
}

// What the ranks of a node do, on one thread: their gradients, each times its samples, added up in
// the order of the ranks.
Values train_serially(const EqualityCase& one, int world) {
  const auto model = one.make();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(kLearningRate));
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> sums;
    for (int rank = 0; rank < world; ++rank) {
      const Batch share = one.share(step, rank, world);
      for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
      one.loss(model->forward(share.x), share.y).backward();
      const auto parameters = model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor weighted = parameters[i].grad() * share.rows();
        if (rank == 0)
          sums.push_back(weighted);
        else
          sums[i].add_(weighted);
      }
    }
    auto parameters = model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = sums[i].mul_(1.0 / static_cast<double>(one.batch_rows));
    adam.step();
  }
  return test::values_of(*model);
}

class Equality : public testing::TestWithParam<std::size_t> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
  EqualityCase of(at::ScalarType type, int64_t rows) const {
    return test::equality_cases(type, rows)[GetParam()];
  }
};

INSTANTIATE_TEST_SUITE_P(Models, Equality, testing::Values(0, 1, 2), [](const auto& tested) {
  return test::equality_cases(at::kDouble)[tested.param].name;
});

TEST_P(Equality, DoubleIsThatOfOneProcessInEveryWorld) {
  const EqualityCase one = of(at::kDouble, 26);  // uneven from 3 ranks on
  const Values alone = test::train_alone(one, kSteps, kLearningRate);
  EXPECT_GT(test::largest_difference(alone, test::values_of(*one.make())), 0.01)
      << "it has learned";
  for (int world = 1; world <= 4; ++world)
    for (const Values& values : in_world(
             af::test::one_node(world), one,
             [](const EqualityCase&c, Communicator&w) { return test::train_ddp(c, w, kSteps); }))
      EXPECT_LT(test::largest_difference(values, alone), 1e-10) << world << " ranks";
}

TEST_P(Equality, DoubleIsThatOfOneProcessBetweenNodesAndInDataParallel) {
  const EqualityCase one = of(at::kDouble, 26);
  const Values alone = test::train_alone(one, kSteps, kLearningRate);
  for (const Values& values : in_world(af::test::two_nodes(3), one, train_data_parallel))
    EXPECT_LT(test::largest_difference(values, alone), 1e-10);
}

TEST_P(Equality, DoubleIsThatOfOneProcessWithAFlatOptimizer) {
  const EqualityCase one = of(at::kDouble, 26);
  const Values alone = test::train_alone(one, kSteps, kLearningRate);
  for (const bool elastic : {false, true})
    for (const Values& values :
         in_world(af::test::one_node(3), one,
                  [&](const EqualityCase&c, Communicator&w) { return train_flat(c, w, elastic); }))
      EXPECT_LT(test::largest_difference(values, alone), 1e-10);
}

TEST_P(Equality, FloatIsBitForBitTheSerialSumOfTheShares) {
  const EqualityCase one = of(at::kFloat, 26);
  for (const std::size_t bucket_bytes : {std::size_t{500}, std::size_t{1} << 20})
    for (const int world : {2, 3, 4}) {
      const Values serial = train_serially(one, world);
      for (const Values& values :
           in_world(af::test::one_node(world), one, [&](const EqualityCase&c, Communicator&w) {
             return test::train_ddp(c, w, kSteps, bucket_bytes);
           }))
        EXPECT_EQ(test::largest_difference(values, serial), 0)
            << world << " ranks, buckets of " << bucket_bytes;
    }
}

TEST_P(Equality, FloatIsTheSameOnAllRanksBetweenNodes) {
  const EqualityCase one = of(at::kFloat, 26);
  const auto all = in_world(af::test::two_nodes(3), one, train_data_parallel);
  for (const Values& values : all) EXPECT_EQ(test::largest_difference(values, all[0]), 0);
  if (one.name != "guide") return;  // gradients that are zero but for rounding make steps of others
  EXPECT_LT(test::largest_difference(all[0], test::train_alone(one, kSteps, kLearningRate)), 1e-6);
}

}  // namespace
}  // namespace af::train
