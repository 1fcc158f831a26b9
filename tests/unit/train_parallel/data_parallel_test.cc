// SPDX-License-Identifier: Apache-2.0
// Ranks are threads of this process, which meet in an in-process store.
#include "af/train/data_parallel.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "af/train/dealer.h"
#include "af/train/metrics.h"
#include "common/error.h"

namespace af::train {
namespace {

using Model = torch::nn::Sequential;

// Runs `body` as each rank of a world; the texts of what they threw, empty for none.
std::vector<std::string> run_world(int world, const std::function<void(int, Communicator&)>& body) {
  const auto store = make_in_process_store();
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Options options;
        options.rank = rank;
        options.world_size = world;
        options.backend = BackendKind::local;
        options.store = store;
        options.timeout = std::chrono::seconds(60);
        Communicator communicator(options);
        body(rank, communicator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> no_errors(int world) {
  return std::vector<std::string>(static_cast<size_t>(world));
}

// The numbers come from `seed` alone: torch's own generator is shared by the threads.
void fill(torch::nn::Module& model, double seed) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters())
    parameter.copy_(
        (at::arange(parameter.numel(), at::kDouble) * seed).sin().view(parameter.sizes()) / 3);
}

Model make_model() {
  Model model(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 4));
  model->to(at::kDouble);
  return model;
}

struct Data {
  at::Tensor x = (at::arange(37 * 6, at::kDouble) * 0.7).sin().view({37, 6});
  at::Tensor y = (at::arange(37 * 4, at::kDouble) * 0.3).cos().view({37, 4});
};

// Three epochs with batches of 8 over 37 rows: the last batch has 5 rows, so with 7 ranks some have
// none of them.
std::vector<at::Tensor> train(int rank, Communicator& world, std::size_t bucket_bytes) {
  const Data data;
  Model model = make_model();
  fill(*model, rank == 0 ? 1.3 : 9.9);  // rank 0's must win
  DataParallel replicas(*model, world, {bucket_bytes});
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  Dealer dealer(37, 8, 1);
  dealer.set_world(rank, world.world_size());
  for (int epoch = 0; epoch < 3; ++epoch)
    while (const auto rows = dealer.next(epoch)) {
      replicas.zero_grad();
      if (!rows->empty()) {
        const at::Tensor index = at::tensor(*rows);
        (model->forward(data.x.index_select(0, index)) - data.y.index_select(0, index))
            .pow(2)
            .mean()
            .backward();
      }
      const bool last = dealer.state().position == 32;
      EXPECT_EQ(replicas.average_gradients(static_cast<int64_t>(rows->size())), last ? 5 : 8);
      adam.step();
      dealer.complete();
    }
  replicas.check_agreement();
  std::vector<at::Tensor> result;
  for (const auto& parameter : model->parameters()) result.push_back(parameter.detach().clone());
  return result;
}

class DataParallelTest : public testing::Test {
 protected:
  // One thread for each rank is enough, and OpenMP's would only wait for each other.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_F(DataParallelTest, AnyWorldTrainsAsOneProcessDoes) {
  std::vector<at::Tensor> alone;
  ASSERT_EQ(
      run_world(1, [&](int rank, Communicator& world) { alone = train(rank, world, 1 << 20); }),
      no_errors(1));
  for (const int world : {2, 3, 7})
    for (const std::size_t bucket_bytes :
         {std::size_t{1}, std::size_t{300}, std::size_t{1} << 20}) {
      std::vector<std::vector<at::Tensor>> results(static_cast<size_t>(world));
      ASSERT_EQ(run_world(world,
                          [&](int rank, Communicator& communicator) {
                            results[static_cast<size_t>(rank)] =
                                train(rank, communicator, bucket_bytes);
                          }),
                no_errors(world));
      for (const auto& result : results)
        for (size_t i = 0; i < alone.size(); ++i)
          EXPECT_LT((result[i] - alone[i]).abs().max().item<double>(), 1e-12)
              << "world " << world << ", buckets of " << bucket_bytes << ", parameter " << i;
    }
}

TEST_F(DataParallelTest, ARankWithoutSamplesMayHoldAnything) {
  EXPECT_EQ(run_world(2,
                      [](int rank, Communicator& world) {
                        Model model = make_model();
                        fill(*model, 1);
                        DataParallel replicas(*model, world);
                        replicas.zero_grad();
                        const double nan = std::numeric_limits<double>::quiet_NaN();
                        for (auto& parameter : model->parameters())
                          parameter.mutable_grad() =
                              at::full_like(parameter, rank == 0 ? 2.5 : nan).detach();
                        EXPECT_EQ(replicas.average_gradients(rank == 0 ? 3 : 0), 3);
                        for (const auto& parameter : model->parameters())
                          EXPECT_TRUE(parameter.grad().eq(2.5).all().item<bool>());
                      }),
            no_errors(2));
}

TEST_F(DataParallelTest, NoSamplesAnywhereGiveZeros) {
  EXPECT_EQ(run_world(2,
                      [](int, Communicator& world) {
                        Model model = make_model();
                        DataParallel replicas(*model, world);
                        EXPECT_EQ(replicas.average_gradients(0), 0);
                        for (const auto& parameter : model->parameters())
                          EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
                      }),
            no_errors(2));
}

TEST_F(DataParallelTest, GradientsThatWereReplacedAreTakenBack) {
  EXPECT_EQ(run_world(2,
                      [](int rank, Communicator& world) {
                        Model model = make_model();
                        DataParallel replicas(*model, world);
                        replicas.average_gradients(1);
                        const void* home = model->parameters()[0].grad().data_ptr();
                        for (auto& parameter : model->parameters())  // as zero_grad of 2.x does
                          parameter.mutable_grad() = at::Tensor();
                        model->parameters()[0].mutable_grad() =
                            at::full_like(model->parameters()[0], rank).detach();
                        EXPECT_EQ(replicas.average_gradients(1), 2);
                        EXPECT_EQ(model->parameters()[0].grad().data_ptr(), home);
                        EXPECT_TRUE(model->parameters()[0].grad().eq(0.5).all().item<bool>());
                        EXPECT_TRUE(model->parameters()[1].grad().eq(0).all().item<bool>());
                      }),
            no_errors(2));
}

TEST_F(DataParallelTest, BuffersAndFrozenParametersComeFromRankZero) {
  EXPECT_EQ(run_world(3,
                      [](int rank, Communicator& world) {
                        Model model(torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4));
                        const auto parameters = model->parameters();
                        parameters[0].set_requires_grad(false);
                        {
                          const torch::NoGradGuard no_grad;
                          at::Tensor(parameters[0]).fill_(rank + 1);
                          for (auto& buffer : model->buffers()) buffer.fill_(rank + 1);
                        }
                        DataParallel replicas(*model, world);
                        EXPECT_TRUE(parameters[0].eq(1).all().item<bool>());
                        EXPECT_FALSE(parameters[0].grad().defined());
                        for (const auto& buffer : model->buffers())
                          EXPECT_TRUE(buffer.eq(1).all().item<bool>());
                        replicas.check_agreement();
                      }),
            no_errors(3));
}

TEST_F(DataParallelTest, OtherModelsAreNamed) {
  const auto errors = run_world(3, [](int rank, Communicator& world) {
    Model model(torch::nn::Linear(6, rank == 2 ? 17 : 16));
    const DataParallel replicas(*model, world);
  });
  for (const auto& error : errors)
    EXPECT_NE(error.find("rank 2 has another model than rank 0 (2 tensors with 119 elements, "
                         "against 2 with 112)"),
              std::string::npos)
        << error;
}

TEST_F(DataParallelTest, DriftIsNamed) {
  const auto errors = run_world(4, [](int rank, Communicator& world) {
    Model model = make_model();
    DataParallel replicas(*model, world);
    replicas.check_agreement();
    if (rank == 1 || rank == 3) {
      const torch::NoGradGuard no_grad;
      model->parameters()[3][2] += 1e-9;
    }
    replicas.check_agreement();
  });
  for (const auto& error : errors)
    EXPECT_NE(error.find("rank 1, 3 are not those of rank 0"), std::string::npos) << error;
}

TEST_F(DataParallelTest, ParametersOfOtherTypesAreRefused) {
  const auto errors = run_world(1, [](int, Communicator& world) {
    Model model(torch::nn::Linear(2, 2));
    model->to(at::kComplexFloat);
    const DataParallel replicas(*model, world);
  });
  EXPECT_NE(errors[0].find("parameter 0.weight is ComplexFloat"), std::string::npos) << errors[0];
}

// Seven buckets of which six go during backward; the samples of a step come from the dealer.
TEST_F(DataParallelTest, ASecondBackwardOfAStepNeedsNoSync) {
  const auto errors = run_world(2, [](int, Communicator& world) {
    const Data data;
    Model model = make_model();
    fill(*model, 1.3);
    DataParallelOptions options;
    options.bucket_bytes = 1;
    DataParallel replicas(*model, world, options);
    torch::optim::Adam adam(model->parameters());
    Dealer dealer(37, 8, 1);
    replicas.keep("data", dealer);
    const auto loss_of = [&](const std::vector<int64_t>& rows) {
      const at::Tensor index = at::tensor(rows);
      return (model->forward(data.x.index_select(0, index)) - data.y.index_select(0, index))
          .pow(2)
          .mean();
    };
    auto rows = replicas.next(0);
    replicas.zero_grad();
    const at::Tensor whole = loss_of(*rows);
    whole.backward();
    std::vector<at::Tensor> wanted;
    replicas.step(static_cast<int64_t>(rows->size()), whole.item<double>(), [&] {
      for (const auto& parameter : model->parameters()) wanted.push_back(parameter.grad().clone());
    });
    replicas.zero_grad(4);  // the same rows again, in halves
    {
      const NoSync guard = replicas.no_sync();
      (loss_of({(*rows)[0], (*rows)[1]}) / 2).backward();
    }
    (loss_of({(*rows)[2], (*rows)[3]}) / 2).backward();
    replicas.step(4, 0.0, [&] {
      for (std::size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), wanted[i], 0, 1e-14));
    });
    replicas.zero_grad(4);
    loss_of(*rows).backward();
    loss_of(*rows).backward();
    replicas.step(4, 0.0, [] {});
  });
  for (const auto& error : errors)
    EXPECT_NE(error.find("a second backward pass for parameter "), std::string::npos) << error;
}

TEST_F(DataParallelTest, ASteadyNumberOfSamplesIsSaidBeforeBackward) {
  const auto errors = run_world(1, [](int, Communicator& world) {
    Model model = make_model();
    fill(*model, 1.3);
    DataParallelOptions options;
    options.bucket_bytes = 1;
    DataParallel replicas(*model, world, options);
    for (const int64_t samples : {4, 5}) {
      replicas.zero_grad(4);
      model->forward(Data().x).mean().backward();
      replicas.step(samples, 0.0, [] {});
    }
  });
  EXPECT_NE(errors[0].find("gradients of 5 samples, but they were reduced during backward as those "
                           "of 4"),
            std::string::npos)
      << errors[0];
}

TEST_F(DataParallelTest, GradientsOutliveTheirOwner) {
  EXPECT_EQ(run_world(1,
                      [](int, Communicator& world) {
                        Model model = make_model();
                        {
                          DataParallel replicas(*model, world);
                          replicas.average_gradients(0);
                        }
                        model->parameters()[0].mutable_grad().fill_(3);
                        EXPECT_EQ(model->parameters()[0].grad().max().item<double>(), 3);
                        model->forward(Data().x).sum().backward();  // no hook is left
                      }),
            no_errors(1));
}

TEST(SumOverRanks, AddsElementByElement) {
  EXPECT_EQ(run_world(3,
                      [](int rank, Communicator& world) {
                        const auto sums = sum_over_ranks(world, {1.0, rank * 0.5, -1.0 * rank});
                        EXPECT_EQ(sums, (std::vector<double>{3.0, 1.5, -3.0}));
                      }),
            no_errors(3));
}

}  // namespace
}  // namespace af::train
