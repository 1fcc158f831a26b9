// SPDX-License-Identifier: Apache-2.0
// A sharded training is that of one process on the whole batch, at every world size.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>

#include "af/train/flat_optimizer.h"
#include "tests/unit/train_fsdp/sharded_chain.h"

namespace af::train::test {
namespace {

class FsdpEquality : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

struct Trained {
  Values values;
  double loss = 0;
};

// Of every rank, in order.
template <typename Adam = torch::optim::Adam>
std::vector<Trained> train_sharded(const EqualityCase& one, const af::test::Nodes& nodes,
                                   int64_t steps, const FullyShardedOptions& more = any_size()) {
  std::vector<Trained> trained(nodes.size());
  with_threads(nodes, [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedOptions options = more;
    options.units = units_of<PartImpl>(*model);
    FullyShardedDataParallel fsdp(*model, world, options);
    Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
    Trained& mine = trained[static_cast<std::size_t>(world.rank())];
    for (int64_t step = 0; step < steps; ++step)
      mine.loss =
          sharded_step(fsdp, *model, one, one.share(step, world.rank(), world.world_size()), adam)
              .loss;
    mine.values = whole_values(fsdp);
  });
  return trained;
}

TEST_F(FsdpEquality, Float64InWorldsOfOneToFour) {
  for (const EqualityCase& one : equality_cases(at::kDouble)) {
    const Values alone = train_alone(one, 50);
    for (int world = 1; world <= 4; ++world)
      for (const Trained& rank : train_sharded(one, one_node(world), 50))
        EXPECT_LT(largest_difference(rank.values, alone), 1e-10) << one.name << ", " << world;
  }
}

// Shares of 6 and 7 rows, and with 26 rows of 8 and 9: the mean is over rows.
TEST_F(FsdpEquality, UnevenShares) {
  for (const EqualityCase& one : equality_cases(at::kDouble, 26)) {
    const Values alone = train_alone(one, 20);
    for (const int world : {3, 4})
      for (const Trained& rank : train_sharded(one, one_node(world), 20))
        EXPECT_LT(largest_difference(rank.values, alone), 1e-10) << one.name << ", " << world;
  }
}

TEST_F(FsdpEquality, BetweenNodes) {
  const EqualityCase one = equality_cases(at::kDouble).at(1);
  const Values alone = train_alone(one, 10);
  for (const Trained& rank : train_sharded(one, separate_nodes(2), 10))
    EXPECT_LT(largest_difference(rank.values, alone), 1e-10);
}

TEST_F(FsdpEquality, WithoutPrefetchAndWithTheFlatOptimizer) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  const Values alone = train_alone(one, 20);
  FullyShardedOptions options = any_size();
  options.prefetch = false;
  for (const Trained& rank : train_sharded<FlatAdam>(one, one_node(2), 20, options))
    EXPECT_LT(largest_difference(rank.values, alone), 1e-10);
}

TEST_F(FsdpEquality, Float32IsTheSameBitsOnAllRanks) {
  for (const EqualityCase& one : equality_cases(at::kFloat)) {
    const auto ranks = train_sharded(one, one_node(3), 20);
    for (const Trained& rank : ranks) {
      EXPECT_EQ(largest_difference(rank.values, ranks[0].values), 0) << one.name;
      EXPECT_EQ(rank.loss, ranks[0].loss);
    }
  }
}

// Not by parts: everything is in the root.
TEST_F(FsdpEquality, AModelWithoutUnits) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  const Values alone = train_alone(one, 10);
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, {});
    torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
    for (int64_t step = 0; step < 10; ++step)
      sharded_step(fsdp, *model, one, one.share(step, world.rank(), 2), adam);
    EXPECT_LT(largest_difference(whole_values(fsdp), alone), 1e-10);
  });
}

// A batch in three parts of different sizes, one of which has no row on rank 1.
TEST_F(FsdpEquality, AccumulatedGradientsAreThoseOfTheWholeBatch) {
  using Accumulate = FullyShardedOptions::Accumulate;
  for (const Accumulate how : {Accumulate::shards, Accumulate::whole}) {
    const EqualityCase one = equality_cases(at::kDouble).at(1);
    const Values alone = train_alone(one, 10);
    with_threads(one_node(2), [&](Communicator& world) {
      const auto model = one.make();
      FullyShardedOptions options = by_parts(*model);
      options.accumulate = how;
      FullyShardedDataParallel fsdp(*model, world, options);
      torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
      for (int64_t step = 0; step < 10; ++step) {
        const Batch all = one.whole(step);
        FullyShardedDataParallel::Result result;
        // {first row of rank 0, of rank 1, end}; the last part is rank 0's alone.
        const std::vector<std::vector<int64_t>> rows = {{0, 5, 14}, {14, 17, 20}, {20, 24, 24}};
        for (std::size_t part = 0; part < rows.size(); ++part) {
          const auto rank = static_cast<std::size_t>(world.rank());
          const int64_t first = rows[part][rank];
          const int64_t count = rows[part][rank + 1] - first;
          // Without rows: any.
          const int64_t shown = count > 0 ? count : 3;
          const int64_t from = count > 0 ? first : 0;
          const at::Tensor loss = fsdp.forward([&] {
            return one.loss(forward_units(*model, all.x.narrow(0, from, shown)),
                            all.y.narrow(0, from, shown));
          });
          result =
              part + 1 < rows.size() ? fsdp.accumulate(loss, count) : fsdp.backward(loss, count);
        }
        EXPECT_EQ(result.samples, 24);
        adam.step();
      }
      EXPECT_LT(largest_difference(whole_values(fsdp), alone), 1e-10);
    });
  }
}

TEST_F(FsdpEquality, ClippedByTheNormOfAllShards) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  const auto model = one.make();
  torch::optim::SGD alone(model->parameters(), torch::optim::SGDOptions(0.1));
  std::vector<double> norms;
  for (int64_t step = 0; step < 5; ++step) {
    alone.zero_grad();
    const Batch all = one.whole(step);
    one.loss(model->forward(all.x), all.y).backward();
    double squares = 0;
    for (const at::Tensor& parameter : model->parameters())
      squares += parameter.grad().square().sum().item<double>();
    norms.push_back(std::sqrt(squares));
    const double factor = std::min(1.0, 0.05 / (norms.back() + 1e-6));
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().mul_(factor);
    alone.step();
  }
  EXPECT_GT(norms[0], 0.05);
  with_threads(one_node(3), [&](Communicator& world) {
    const auto mine = one.make();
    FullyShardedDataParallel fsdp(*mine, world, by_parts(*mine));
    torch::optim::SGD sgd(fsdp.parameters(), torch::optim::SGDOptions(0.1));
    for (int64_t step = 0; step < 5; ++step) {
      const Batch share = one.share(step, world.rank(), 3);
      fsdp.backward(fsdp.forward([&] { return one.loss(forward_units(*mine, share.x), share.y); }),
                    share.rows());
      EXPECT_NEAR(fsdp.clip_grad_norm(0.05), norms[static_cast<std::size_t>(step)], 1e-12);
      sgd.step();
    }
    EXPECT_LT(largest_difference(whole_values(fsdp), values_of(*model)), 1e-10);
  });
}

// Evaluation between steps, and twice in a row, sees the parameters of now.
TEST_F(FsdpEquality, EvaluationSeesTheLastStep) {
  const EqualityCase one = equality_cases(at::kDouble).at(1);
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-2));
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      return fsdp.forward([&] { return forward_units(*model, one.x); });
    };
    for (int64_t step = 0; step < 3; ++step) {
      const auto plain = one.make();
      const Values now = whole_values(fsdp);
      {
        const at::NoGradGuard no_grad;
        for (auto& item : plain->named_parameters()) item.value().copy_(now.at(item.key()));
      }
      const at::Tensor wanted = plain->forward(one.x);
      EXPECT_TRUE(evaluate().equal(wanted)) << step;
      EXPECT_TRUE(evaluate().equal(wanted)) << step;
      sharded_step(fsdp, *model, one, one.share(step, world.rank(), 2), adam);
    }
  });
}

}  // namespace
}  // namespace af::train::test
