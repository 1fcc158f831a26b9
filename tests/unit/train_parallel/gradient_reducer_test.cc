// SPDX-License-Identifier: Apache-2.0
// What happens within backward, and to the layout of the buckets. Ranks are threads.
#include "train/parallel/gradient_reducer.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/error.h"
#include "tests/unit/collectives/world.h"

namespace af::train {
namespace {

using test::one_node;
using test::with_threads;
using Unused = GradientReducer::Unused;

[[noreturn]] void die() {
  throw std::runtime_error("dies");
}

// Numbers that are multiplied one after the other: backward comes to the last factor first.
struct Factors : torch::nn::Module {
  explicit Factors(int count, at::ScalarType type = at::kDouble) {
    for (int i = 0; i < count; ++i)
      all.push_back(register_parameter("f" + std::to_string(i),
                                       at::full({3}, i + 2, at::TensorOptions(type))));
  }
  at::Tensor product(const std::vector<std::size_t>& order) const {
    at::Tensor result = at::ones({3}, all[0].options().requires_grad(false));
    for (const std::size_t i : order) result = result * all[i];
    return result.sum();
  }
  std::vector<at::Tensor> all;
};

GradientReducer::Options one_parameter_each(Unused unused = Unused::zero) {
  GradientReducer::Options options;
  options.limits = {1, 1};
  options.unused = unused;
  return options;
}

std::vector<std::size_t> layout_of(GradientReducer& reducer) {
  std::vector<std::size_t> indices;
  for (const GradientBucket& bucket : reducer.gradients().buckets)
    for (const GradientSlot& slot : bucket.slots) indices.push_back(slot.index);
  return indices;
}

double value_of(const at::Tensor& parameter) {
  return parameter.grad()[1].item<double>();
}

class GradientReducerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_F(GradientReducerTest, AllBucketsButTheLastGoDuringBackward) {
  with_threads(one_node(2), [](Communicator& world) {
    const Factors model(4);
    GradientReducer reducer(model, one_parameter_each());
    reducer.allocate(world, false, 0);
    for (int step = 0; step < 3; ++step) {
      const int64_t samples = world.rank() + 1;
      reducer.zero();
      reducer.expect(world, static_cast<double>(samples));
      (model.product({0, 1, 2, 3}) * (world.rank() + 1)).backward();
      const StepSums sums = reducer.finish(world, {samples, static_cast<double>(samples), 1.0}, {});
      EXPECT_EQ(reducer.launched_by_hooks(), 3U);
      EXPECT_EQ(sums.samples, 3);
      EXPECT_EQ(sums.loss, 3);
      apply_scale(reducer.gradients());
      // 2 * 3 * 4 * 5 = 120, times the mean of 1, 2, 2
      for (int i = 0; i < 4; ++i)
        EXPECT_DOUBLE_EQ(value_of(model.all[std::size_t(i)]), 120.0 / (i + 2) * 5 / 3);
    }
  });
}

TEST_F(GradientReducerTest, OneWithoutSamplesMatchesOneThatLaunchesInBackward) {
  with_threads(one_node(2), [](Communicator& world) {
    const Factors model(3);
    GradientReducer reducer(model, one_parameter_each());
    reducer.allocate(world, false, 0);
    for (int step = 0; step < 4; ++step) {
      const int64_t samples = (world.rank() + step) % 2;
      reducer.zero();
      reducer.expect(world, static_cast<double>(samples));
      if (samples > 0) model.product({0, 1, 2}).backward();
      reducer.finish(world,
                     {samples, static_cast<double>(samples),
                      samples > 0 ? 2.0 : std::numeric_limits<double>::quiet_NaN()},
                     {});
      apply_scale(reducer.gradients());
      EXPECT_EQ(value_of(model.all[0]), 12);
    }
  });
}

// Rank 0 finds another order than the others, who take it over.
TEST_F(GradientReducerTest, BucketsAreBuiltAnewOnceInTheOrderOfRankZero) {
  for (const bool kept : {false, true})
    with_threads(one_node(3), [&](Communicator& world) {
      const Factors model(3);
      GradientReducer reducer(model, one_parameter_each());
      reducer.allocate(world, kept, 0);
      EXPECT_EQ(layout_of(reducer), (std::vector<std::size_t>{2, 1, 0}));
      EXPECT_EQ(reducer.gradients().layout, 1U);
      const std::vector<std::vector<std::size_t>> products = {{0, 2, 1}, {0, 1, 2}, {2, 1, 0}};
      const auto step = [&](int64_t samples) {
        reducer.zero();
        reducer.expect(world, static_cast<double>(samples));
        if (samples > 0)
          (model.product(products[std::size_t(world.rank())]) * (world.rank() + 1)).backward();
        reducer.finish(world, {samples, static_cast<double>(samples), 0}, {});
        apply_scale(reducer.gradients());
      };
      step(world.rank());  // rank 0 has none, and no order yet
      EXPECT_EQ(reducer.gradients().layout, 1U);
      EXPECT_DOUBLE_EQ(value_of(model.all[0]), 12.0 * (1 * 2 + 2 * 3) / 3);
      step(1);
      EXPECT_EQ(layout_of(reducer), (std::vector<std::size_t>{1, 2, 0}));
      EXPECT_EQ(reducer.gradients().layout, 2U);
      for (int again = 0; again < 2; ++again) {
        EXPECT_EQ(value_of(model.all[0]), 24);
        EXPECT_EQ(value_of(model.all[1]), 16);
        EXPECT_EQ(value_of(model.all[2]), 12);
        const GradientBucket& first = reducer.gradients().buckets[0];
        EXPECT_EQ(first.gradients.data_ptr(), model.all[1].grad().data_ptr());
        step(2);
      }
      EXPECT_EQ(reducer.gradients().layout, 2U);
    });
}

TEST_F(GradientReducerTest, NothingIsBuiltAnewWhereEachBucketHasWhatItWouldHave) {
  with_threads(one_node(2), [](Communicator& world) {
    const Factors model(3);
    GradientReducer reducer(model, {});  // one bucket, in another order than gradients come
    reducer.allocate(world, false, 0);
    const Factors other(3);
    GradientReducer as_planned(other, one_parameter_each());
    as_planned.allocate(world, false, 0);
    for (int step = 0; step < 2; ++step) {
      reducer.zero();
      as_planned.zero();
      (model.product({2, 1, 0}) + other.product({0, 1, 2})).backward();
      reducer.finish(world, {1, 1, 0}, {});
      as_planned.finish(world, {1, 1, 0}, {});
    }
    EXPECT_EQ(reducer.gradients().layout, 1U);
    EXPECT_EQ(as_planned.gradients().layout, 1U);
  });
}

TEST_F(GradientReducerTest, AParameterThatTwoModulesShareIsReducedOnce) {
  with_threads(one_node(2), [](Communicator& world) {
    const Factors model(1);
    torch::nn::Module holder;
    holder.register_parameter("a", model.all[0]);
    holder.register_parameter("b", model.all[0]);
    GradientReducer reducer(holder, one_parameter_each());
    reducer.allocate(world, false, 0);
    EXPECT_EQ(reducer.buckets(), 1U);
    (model.all[0] * model.all[0]).sum().backward();
    reducer.finish(world, {1, 1, 0}, {});
    apply_scale(reducer.gradients());
    EXPECT_EQ(value_of(model.all[0]), 4);
  });
}

TEST_F(GradientReducerTest, WhatFailsInBackwardIsThrownBehindIt) {
  with_threads(one_node(2), [](Communicator& world) {
    Factors model(4);
    GradientReducer reducer(model, one_parameter_each());
    reducer.allocate(world, false, 0);
    reducer.expect(world, 1);
    if (world.rank() == 1) {  // lost when one bucket is reduced and the next is not
      model.all[2].register_hook([](const at::Tensor&) { die(); });
      EXPECT_ANY_THROW(model.product({0, 1, 2, 3}).backward());
      return;
    }
    EXPECT_NO_THROW(model.product({0, 1, 2, 3}).backward());
    try {
      reducer.finish(world, {1, 1, 0}, {});
      ADD_FAILURE() << "no error";
    } catch (const CommunicatorError& error) {
      EXPECT_EQ(error.kind(), CommunicatorError::Kind::peer_lost) << error.what();
    }
  });
}

// As DataParallel does it: what a rank had is kept, and reduced in the next world.
TEST_F(GradientReducerTest, KeptGradientsAreReducedAgainWithWhoIsLeft) {
  const auto next_store = make_in_process_store();
  with_threads(one_node(3), [&](Communicator& world) {
    Factors model(4);
    GradientReducer reducer(model, one_parameter_each());
    reducer.allocate(world, true, 0);
    reducer.zero();
    reducer.expect(world, 1);
    if (world.rank() == 1) {
      model.all[1].register_hook([](const at::Tensor&) { die(); });
      EXPECT_ANY_THROW(model.product({0, 1, 2, 3}).backward());
      return;
    }
    (model.product({0, 1, 2, 3}) * (world.rank() + 1)).backward();
    EXPECT_THROW(reducer.finish(world, {1, 1, 0}, {}), CommunicatorError);
    Options options = test::options_for(one_node(2), world.rank() / 2);
    options.generation = 8;
    options.store = next_store;
    Communicator next(options);
    reducer.allocate(next, true, 0);
    EXPECT_EQ(reducer.finish(next, {1, 1, 0}, {}).samples, 2);
    apply_scale(reducer.gradients());
    for (int i = 0; i < 4; ++i)
      EXPECT_DOUBLE_EQ(value_of(model.all[std::size_t(i)]), 120.0 / (i + 2) * 2);
  });
}

TEST_F(GradientReducerTest, UnusedParametersAreFoundOnRequest) {
  with_threads(one_node(2), [](Communicator& world) {
    const Factors model(4);
    GradientReducer reducer(model, one_parameter_each(Unused::detect));
    reducer.allocate(world, false, 0);
    for (int step = 0; step < 3; ++step) {
      reducer.zero();
      reducer.expect(world, 1);
      // f1: rank 0 alone; f3: nobody
      (world.rank() == 0 ? model.product({0, 1, 2}) : model.product({0, 2})).backward();
      reducer.finish(world, {1, 1, 0}, {});
      apply_scale(reducer.gradients());
      EXPECT_EQ(value_of(model.all[0]), (12 + 4) / 2);
      EXPECT_EQ(value_of(model.all[1]), 8 / 2);
      EXPECT_FALSE(model.all[3].grad().defined());
      for (const GradientBucket& bucket : reducer.gradients().buckets)
        for (const GradientSlot& slot : bucket.slots) EXPECT_EQ(slot.used, slot.index != 3);
    }
    EXPECT_EQ(layout_of(reducer), (std::vector<std::size_t>{2, 1, 0, 3})) << "the unused one last";
    EXPECT_EQ(reducer.launched_by_hooks(), world.rank() == 0 ? 3U : 1U);
  });
}

TEST_F(GradientReducerTest, WithoutTheRequestTheyAreNamedOnAllRanks) {
  with_threads(one_node(3), [](Communicator& world) {
    const Factors model(3);
    GradientReducer reducer(model, one_parameter_each(Unused::refuse));
    reducer.allocate(world, false, 0);
    const auto error_of = [&](const std::vector<std::size_t>& product, int64_t samples) {
      reducer.zero();
      reducer.expect(world, static_cast<double>(samples));
      if (samples > 0) model.product(product).backward();
      try {
        reducer.finish(world, {samples, static_cast<double>(samples), 0}, {});
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_EQ(error_of({0, 1, 2}, world.rank()), "") << "no samples, no gradients: as it should be";
    const bool one = world.rank() == 1;
    EXPECT_EQ(error_of(one ? std::vector<std::size_t>{0, 2} : std::vector<std::size_t>{0, 1, 2}, 2)
                  .substr(0, 46),
              one ? "parameter f1 got no gradient on this rank: its"
                  : "parameter f1 got no gradient on another rank: ");
    EXPECT_EQ(error_of({0, 1}, 2).substr(0, 42), "parameter f2 got no gradient on this rank:");
    EXPECT_EQ(error_of({0, 1, 2}, 2), "") << "the reducer goes on";
  });
}

TEST_F(GradientReducerTest, SixteenBitsAreWithinTheirRounding) {
  struct Case {
    at::ScalarType type;
    double unit;  // half the distance of neighbours, relative
  };
  for (const Case& one : {Case{at::kBFloat16, std::exp2(-9)}, Case{at::kHalf, std::exp2(-11)}})
    for (const bool kept : {false, true})
      with_threads(one_node(3), [&](Communicator& world) {
        Factors model(3, at::kFloat);
        GradientReducer::Options options = one_parameter_each();
        options.compression = one.type;
        GradientReducer reducer(model, options);
        reducer.allocate(world, kept, 0);
        for (int step = 0; step < 3; ++step) {
          // More than f16 can count to, and sums that it cannot hold.
          const std::vector<int64_t> samples = {40000, 70000, 3};
          reducer.zero();
          const auto mine = samples[std::size_t(world.rank())];
          reducer.expect(world, static_cast<double>(mine));
          const auto factor = [&](int rank) { return 1.7 * std::sin(rank * 2.0 + step + 1); };
          (model.product({0, 1, 2}) * factor(world.rank())).backward();
          const StepSums sums = reducer.finish(world, {mine, static_cast<double>(mine), 0.5}, {});
          EXPECT_EQ(reducer.launched_by_hooks(), step == 0 ? 0U : 2U);
          EXPECT_EQ(sums.samples, 110003);
          apply_scale(reducer.gradients());
          for (int i = 0; i < 3; ++i) {
            double mean = 0;
            double absolute = 0;
            for (int rank = 0; rank < 3; ++rank) {
              const double part = 24.0 / (i + 2) * factor(rank) *
                                  static_cast<double>(samples[std::size_t(rank)]) / 110003;
              mean += part;
              absolute += std::fabs(part);
            }
            EXPECT_EQ(model.all[std::size_t(i)].grad().scalar_type(), at::kFloat);
            EXPECT_NEAR(value_of(model.all[std::size_t(i)]), mean, 2.001 * one.unit * absolute);
            EXPECT_NE(value_of(model.all[std::size_t(i)]), static_cast<float>(mean));
          }
        }
      });
}

TEST_F(GradientReducerTest, ParametersOfSixteenBitsAreReducedAsTheyAre) {
  with_threads(one_node(2), [](Communicator& world) {
    Factors model(3, at::kBFloat16);
    GradientReducer reducer(model, one_parameter_each());
    reducer.allocate(world, false, 0);
    for (int step = 0; step < 2; ++step) {
      reducer.zero();
      reducer.expect(world, 512);
      (model.product({0, 1, 2}) * (world.rank() + 1)).backward();
      EXPECT_EQ(reducer.finish(world, {512, 512, 0}, {}).samples, 1024);
      apply_scale(reducer.gradients());
      EXPECT_EQ(value_of(model.all[0]), 18);
    }
  });
}

TEST_F(GradientReducerTest, GradientsThatAreNoPlainTensorsAreTaken) {
  with_threads(one_node(2), [](Communicator& world) {
    torch::nn::Module model;
    const at::Tensor table =
        model.register_parameter("table", at::ones({4, 2}, at::TensorOptions(at::kDouble)));
    const at::Tensor turned = model.register_parameter(
        "turned", at::arange(6, at::TensorOptions(at::kDouble)).view({2, 3}).t());
    GradientReducer reducer(model, one_parameter_each());
    reducer.allocate(world, false, 0);
    for (int step = 0; step < 2; ++step) {
      reducer.zero();
      const at::Tensor rows = at::tensor({int64_t{1}, int64_t{world.rank()}});
      (at::embedding(table, rows, -1, false, /*sparse=*/true).sum() +
       (turned * at::arange(6, at::TensorOptions(at::kDouble)).view({3, 2})).sum())
          .backward();
      reducer.finish(world, {1, 1, 0}, {});
      apply_scale(reducer.gradients());
      EXPECT_TRUE(table.grad().select(1, 0).equal(
          at::tensor({0.5, 1.5, 0.0, 0.0}, at::TensorOptions(at::kDouble))));
      EXPECT_EQ(turned.grad().strides(), turned.strides());
      EXPECT_TRUE(turned.grad().equal(at::arange(6, at::TensorOptions(at::kDouble)).view({3, 2})));
    }
  });
}

}  // namespace
}  // namespace af::train
