// SPDX-License-Identifier: Apache-2.0
// Ranks are threads.
#include "af/train/distributed_data_parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "common/error.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/train_parallel/equality_models.h"

namespace af::train {
namespace {

using af::test::one_node;
using af::test::with_threads;
using test::Batch;
using test::EqualityCase;

std::vector<at::Tensor> gradients_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 0, 1e-13)) << i;
}

class DistributedDataParallelTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
  const EqualityCase mlp_ = test::equality_cases(at::kDouble, 26)[0];

  std::vector<at::Tensor> gradients_alone(int64_t step) const {
    const auto model = mlp_.make();
    const Batch all = mlp_.whole(step);
    mlp_.loss(model->forward(all.x), all.y).backward();
    return gradients_of(*model);
  }
  at::Tensor loss_of(const test::Chain& model, const Batch& batch) const {
    return mlp_.loss(model.forward(batch.x), batch.y);
  }
};

// Every parameter a bucket, and all in one.
DistributedDataParallelOptions buckets_of(std::size_t bytes) {
  DistributedDataParallelOptions options;
  options.first_bucket_bytes = options.bucket_bytes = bytes;
  return options;
}

TEST_F(DistributedDataParallelTest, BackwardGivesTheGradientsOfTheWholeBatch) {
  for (const std::size_t bytes : {1, 1000, 1 << 20})
    with_threads(one_node(3), [&](Communicator& world) {
      const auto model = mlp_.make();
      DistributedDataParallel ddp(*model, world, buckets_of(bytes));
      for (int64_t step = 0; step < 4; ++step) {
        const Batch mine = mlp_.share(step, world.rank(), world.world_size());
        ddp.zero_grad();
        const auto result = ddp.backward(loss_of(*model, mine), mine.rows());
        EXPECT_EQ(result.samples, 26);
        const Batch all = mlp_.whole(step);
        EXPECT_NEAR(result.loss, loss_of(*model, all).item<double>(), 1e-14);
        expect_close(gradients_of(*model), gradients_alone(step));
      }
    });
}

TEST_F(DistributedDataParallelTest, WithoutANumberOfSamplesItIsTheMeanOverTheRanks) {
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = mlp_.make();
    DistributedDataParallel ddp(*model, world);
    ddp.backward(loss_of(*model, mlp_.share(0, world.rank(), 2)));
    expect_close(gradients_of(*model), gradients_alone(0));
  });
}

TEST_F(DistributedDataParallelTest, ARankWithoutRowsTakesPart) {
  for (const std::size_t bytes : {1, 1 << 20})
    with_threads(one_node(2), [&](Communicator& world) {
      const auto model = mlp_.make();
      DistributedDataParallel ddp(*model, world, buckets_of(bytes));
      for (int64_t step = 0; step < 3; ++step) {
        ddp.zero_grad();
        const bool works = (step + world.rank()) % 2 == 0;
        const auto result =
            works ? ddp.backward(loss_of(*model, mlp_.whole(step)), 26) : ddp.backward({}, 0);
        EXPECT_EQ(result.samples, 26);
        expect_close(gradients_of(*model), gradients_alone(step));
      }
      ddp.zero_grad();
      const auto nothing = ddp.backward({}, 0);
      EXPECT_EQ(nothing.samples, 0);
      EXPECT_TRUE(std::isnan(nothing.loss));
    });
}

TEST_F(DistributedDataParallelTest, ParametersAndBuffersAreThoseOfRankZero) {
  with_threads(one_node(3), [](Communicator& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
    {
      const at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(world.rank() + 1);
      for (auto& buffer : model->buffers()) buffer.fill_(world.rank() + 1);
    }
    DistributedDataParallel ddp(*model, world);
    for (const auto& parameter : model->parameters())
      EXPECT_TRUE(parameter.eq(1).all().item<bool>());
    for (const auto& buffer : model->buffers()) EXPECT_TRUE(buffer.eq(1).all().item<bool>());
    // Behind a backward too, though the ranks' batches differ.
    const at::Tensor x = (at::arange(32) * (world.rank() + 1)).sin().view({8, 4});
    ddp.backward(model->forward(x).pow(2).mean());
    const at::Tensor mean = model->named_buffers()["1.running_mean"];
    torch::nn::Sequential rank_0(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
    {
      const at::NoGradGuard no_grad;
      for (auto& parameter : rank_0->parameters()) parameter.fill_(1);
      for (auto& buffer : rank_0->buffers()) buffer.fill_(1);
    }
    rank_0->forward(at::arange(32).sin().view({8, 4}));
    EXPECT_TRUE(mean.equal(rank_0->named_buffers()["1.running_mean"]));
    EXPECT_EQ(model->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 2);
  });
}

TEST_F(DistributedDataParallelTest, BuffersStayTheRanksOwnOnRequest) {
  with_threads(one_node(2), [](Communicator& world) {
    torch::nn::Sequential model(torch::nn::BatchNorm1d(3));
    DistributedDataParallelOptions options;
    options.broadcast_buffers = false;
    DistributedDataParallel ddp(*model, world, options);
    ddp.backward(model->forward(at::full({6, 3}, static_cast<double>(world.rank()))).sum());
    EXPECT_FLOAT_EQ(model->named_buffers()["0.running_mean"][0].item<float>(),
                    0.1F * static_cast<float>(world.rank()));
  });
}

TEST_F(DistributedDataParallelTest, AnotherModelIsNamedByItsRank) {
  std::vector<std::string> errors(3);
  with_threads(one_node(3), [&](Communicator& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, world.rank() == 1 ? 5 : 3));
    try {
      const DistributedDataParallel ddp(*model, world);
    } catch (const Error& error) {
      errors[std::size_t(world.rank())] = error.what();
    }
  });
  for (const std::string& error : errors)
    EXPECT_NE(
        error.find("rank 1 has another model than rank 0 (2 tensors with 25 elements, against "
                   "2 with 15)"),
        std::string::npos)
        << error;
}

// Passes of different sizes on every rank, one of them empty on some.
TEST_F(DistributedDataParallelTest, PassesUnderNoSyncAddUpToTheMeanOverAllSamples) {
  for (const std::size_t bytes : {1, 1 << 20})
    with_threads(one_node(2), [&](Communicator& world) {
      const auto model = mlp_.make();
      DistributedDataParallel ddp(*model, world, buckets_of(bytes));
      const std::vector<std::vector<int64_t>> cuts = {{0, 3, 10, 11}, {11, 11, 12, 26}};
      for (int64_t step = 0; step < 3; ++step) {
        const auto& mine = cuts[std::size_t(world.rank())];
        const Batch all = mlp_.whole(step);
        const auto pass = [&](std::size_t i) {
          const int64_t rows = mine[i + 1] - mine[i];
          if (rows == 0) return ddp.backward({}, 0);
          return ddp.backward(
              loss_of(*model, {all.x.narrow(0, mine[i], rows), all.y.narrow(0, mine[i], rows)}),
              rows);
        };
        ddp.zero_grad();
        {
          const NoSync guard = ddp.no_sync();
          pass(0);
          EXPECT_EQ(pass(1).samples, mine[2] - mine[0]) << "of this rank alone";
        }
        EXPECT_EQ(pass(2).samples, 26);
        expect_close(gradients_of(*model), gradients_alone(step));
      }
    });
}

TEST_F(DistributedDataParallelTest, StockOptimizersMayZeroTheGradients) {
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = mlp_.make();
    DistributedDataParallel ddp(*model, world);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0));
    for (int64_t step = 0; step < 3; ++step) {
      sgd.zero_grad();
      ddp.backward(loss_of(*model, mlp_.share(step, world.rank(), 2)));
      sgd.step();
      expect_close(gradients_of(*model), gradients_alone(step));
    }
  });
}

// A loss of two models, and each on its own with the other's reductions in between.
TEST_F(DistributedDataParallelTest, SeveralModelsAtOnce) {
  with_threads(one_node(2), [&](Communicator& world) {
    const auto one = mlp_.make();
    const auto two = mlp_.make();
    DistributedDataParallel first(*one, world, buckets_of(1));
    DistributedDataParallel second(*two, world, buckets_of(600));
    for (int64_t step = 0; step < 3; ++step) {
      const Batch mine = mlp_.share(step, world.rank(), 2);
      first.zero_grad();
      second.zero_grad();
      if (step < 2) {
        first.prepare(mine.rows());
        second.prepare(mine.rows());
        (loss_of(*one, mine) + loss_of(*two, mine)).backward();
        first.finish();
        EXPECT_EQ(second.finish().samples, 26);
      } else {
        first.backward(loss_of(*one, mine), mine.rows());
        second.backward(loss_of(*two, mine), mine.rows());
      }
      expect_close(gradients_of(*one), gradients_alone(step));
      expect_close(gradients_of(*two), gradients_alone(step));
    }
  });
}

TEST_F(DistributedDataParallelTest, ALostRankIsAnErrorOfTheOthersBackward) {
  with_threads(one_node(3), [&](Communicator& world) {
    const auto model = mlp_.make();
    DistributedDataParallel ddp(*model, world, buckets_of(1));
    const Batch mine = mlp_.share(0, world.rank(), 3);
    ddp.backward(loss_of(*model, mine), mine.rows());
    if (world.rank() == 1) return;
    try {
      ddp.backward(loss_of(*model, mine), mine.rows());
      ADD_FAILURE() << "no error";
    } catch (const CommunicatorError& error) {
      EXPECT_EQ(error.kind(), CommunicatorError::Kind::peer_lost) << error.what();
    }
  });
}

TEST_F(DistributedDataParallelTest, WrongCallsAreNamed) {
  with_threads(one_node(1), [&](Communicator& world) {
    const auto model = mlp_.make();
    DistributedDataParallel ddp(*model, world);
    EXPECT_THROW(ddp.backward({}, 3), Error);
    ddp.zero_grad();
    EXPECT_THROW(ddp.prepare(-1), Error);
    const NoSync guard = ddp.no_sync();
    ddp.prepare(3);
    EXPECT_THROW(ddp.prepare(4), Error);
    torch::nn::Module nothing;
    EXPECT_THROW(DistributedDataParallel(nothing, world), Error);
  });
}

}  // namespace
}  // namespace af::train
