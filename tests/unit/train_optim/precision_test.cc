// SPDX-License-Identifier: Apache-2.0
#include "af/train/precision.h"

#include <ATen/core/ivalue.h>  // first: with clang the others need it complete

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/unit/collectives/world.h"

namespace af::train {
namespace {

const PrecisionSupport kT4 = support_of_capability("Tesla T4", 7, 5);
const PrecisionSupport kA100 = support_of_capability("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 8, 0);
const PrecisionSupport kOldGpu = support_of_capability("Tesla P100", 6, 0);
const PrecisionSupport kOldCpu = {"CPU", Support::none, Support::slow};
const PrecisionSupport kNewCpu = {"CPU (avx512_bf16)", Support::none, Support::fast};

TEST(Precision, TheBestThatAllHave) {
  struct Row {
    std::vector<PrecisionSupport> ranks;
    Precision best;
  };
  const std::vector<Row> rows = {{{kA100, kA100}, Precision::bf16},
                                 {{kA100, kT4, kA100}, Precision::f16},
                                 {{kT4}, Precision::f16},
                                 {{kT4, kOldGpu}, Precision::f32},
                                 {{kOldCpu}, Precision::f32},
                                 {{kNewCpu, kNewCpu}, Precision::bf16},
                                 {{kNewCpu, kOldCpu}, Precision::f32}};
  for (const Row& row : rows)
    EXPECT_EQ(choose_precision(row.ranks), row.best) << row.ranks[0].device;
}

TEST(Precision, WhatIsAskedForWhereAllHaveIt) {
  EXPECT_EQ(choose_precision({kA100, kT4}, Precision::f16), Precision::f16);
  EXPECT_EQ(choose_precision({kA100, kT4}, Precision::f32), Precision::f32);
  EXPECT_EQ(choose_precision({kOldCpu}, Precision::bf16), Precision::bf16);
  std::string text;
  try {
    choose_precision({kA100, kT4, kA100, kT4}, Precision::bf16);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(text,
            "bf16 is asked for, and not all ranks have it: rank 1, Tesla T4 (compute capability "
            "7.5); rank 3, Tesla T4 (compute capability 7.5). All of them have f32 and f16");
}

TEST(Precision, NamesAndTypes) {
  for (const Precision one : {Precision::f32, Precision::f16, Precision::bf16})
    EXPECT_EQ(to_precision(name_of(one)), one);
  EXPECT_THROW(to_precision("fp16"), Error);
  EXPECT_EQ(type_of(Precision::bf16), at::kBFloat16);
}

TEST(Precision, RanksAgree) {
  test::with_threads(test::one_node(2), [](Communicator& world) {
    const auto best = agree_on_precision(world, at::kCPU);
    EXPECT_EQ(best, choose_precision({precision_support(at::kCPU)}));
    EXPECT_EQ(agree_on_precision(world, at::kCPU, Precision::bf16), Precision::bf16);
    EXPECT_THROW(agree_on_precision(world, at::kCPU, Precision::f16), Error);
    std::string text;
    try {
      agree_on_precision(world, at::kCPU,
                         world.rank() == 0 ? std::nullopt : std::optional(Precision::f32));
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(text,
              "rank 1 asks for f32 and rank 0 for the best: give all ranks the same precision");
    EXPECT_EQ(agree_on_precision(world, at::kCPU, Precision::f32), Precision::f32);
  });
}

at::ScalarType type_of_product() {
  const at::Tensor a = at::ones({4, 4});
  return at::mm(a, a).scalar_type();
}

TEST(Autocast, HoldsInItsScopeAndEndsThere) {
  EXPECT_EQ(type_of_product(), at::kFloat);
  {
    const Autocast half(at::kCPU, Precision::bf16);
    EXPECT_EQ(type_of_product(), at::kBFloat16);
    {
      const Autocast full(at::kCPU, Precision::f32);
      EXPECT_EQ(type_of_product(), at::kFloat);
    }
    EXPECT_EQ(type_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
  EXPECT_THROW(Autocast(at::kCPU, Precision::f16), Error);
  EXPECT_EQ(type_of_product(), at::kFloat);
}

// The cache of autocast has the parameter in bf16: behind a step it must not be the old one.
TEST(Autocast, SeesParametersThatHaveChanged) {
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const at::Tensor input = at::ones({2, 2});
  const auto product = [&] {
    const Autocast half(at::kCPU, Precision::bf16);
    return at::mm(input, weight).sum().to(at::kFloat).item<float>();
  };
  EXPECT_EQ(product(), 8);
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(product(), 16);
}

TEST(Autocast, GradientsStayInTheTypeOfTheParameters) {
  at::Tensor weight = at::ones({4, 4}).requires_grad_();
  at::Tensor loss;
  {
    const Autocast half(at::kCPU, Precision::bf16);
    loss = at::mm(at::ones({4, 4}), weight).to(at::kFloat).sum();
  }
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace af::train
