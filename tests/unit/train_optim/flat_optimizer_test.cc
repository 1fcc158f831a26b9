// SPDX-License-Identifier: Apache-2.0
#include "af/train/flat_optimizer.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "af/train/gradient_norm.h"
#include "af/train/module_state.h"
#include "common/error.h"
#include "tests/unit/train_optim/small_model.h"

namespace af::train {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;
using Tensors = std::vector<at::Tensor>;

// How far two optimizers are apart after `steps` steps with the same gradients.
double apart(SmallModel& one, torch::optim::Optimizer& first, SmallModel& other,
             torch::optim::Optimizer& second, int steps, int from = 0) {
  for (int step = from; step < from + steps; ++step) {
    one.set_gradients(step);
    other.set_gradients(step);
    first.step();
    second.step();
  }
  return one.distance(other);
}

struct Case {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)> stock, flat;
};

template <typename Stock, typename Flat, typename Options>
Case make_case(std::string name, Options options) {
  return {std::move(name),
          [=](const Tensors& all) { return std::make_unique<Stock>(all, options); },
          [=](const Tensors& all) { return std::make_unique<Flat>(all, options); }};
}

std::vector<Case> cases() {
  using torch::optim::Adam;
  using torch::optim::AdamW;
  using torch::optim::SGD;
  return {
      make_case<Adam, FlatAdam>("Adam", AdamOptions(1e-2)),
      make_case<Adam, FlatAdam>("Adam, decay", AdamOptions(1e-2).weight_decay(0.1).eps(1e-6)),
      make_case<Adam, FlatAdam>("Adam, betas", AdamOptions(1e-2).betas({0.8, 0.95})),
      make_case<AdamW, FlatAdamW>("AdamW", AdamWOptions(1e-2)),
      make_case<AdamW, FlatAdamW>("AdamW, decay", AdamWOptions(1e-2).weight_decay(0.3)),
      make_case<SGD, FlatSgd>("SGD", SGDOptions(1e-2)),
      make_case<SGD, FlatSgd>("SGD, decay", SGDOptions(1e-2).weight_decay(0.1)),
      make_case<SGD, FlatSgd>("SGD, momentum", SGDOptions(1e-2).momentum(0.9)),
      make_case<SGD, FlatSgd>("SGD, dampening",
                              SGDOptions(1e-2).momentum(0.9).dampening(0.3).weight_decay(0.1)),
      make_case<SGD, FlatSgd>("SGD, nesterov",
                              SGDOptions(1e-2).momentum(0.9).nesterov(true).weight_decay(0.1)),
  };
}

TEST(FlatOptimizer, HasTheNumbersOfLibtorchsOwn) {
  for (const Case& one : cases()) {
    SmallModel a(at::kDouble), b(at::kDouble);
    const auto stock = one.stock(a.parameters());
    const auto flat = one.flat(b.parameters());
    EXPECT_LE(apart(a, *stock, b, *flat, 100), 1e-12) << one.name;
    EXPECT_GT(a.distance(SmallModel(at::kDouble)), 0.1) << one.name << ": nothing has moved";
    SmallModel c(at::kFloat), d(at::kFloat);
    const auto stock32 = one.stock(c.parameters());
    const auto flat32 = one.flat(d.parameters());
    EXPECT_LE(apart(c, *stock32, d, *flat32, 100), 2e-5) << one.name;
  }
}

// Lists of tensors, as on a device: what the loops over memory do not take. Parameters with gaps
// are such ones.
TEST(FlatOptimizer, HasThemToWithOperationsOnLists) {
  for (const Case& one : cases()) {
    SmallModel a(at::kDouble, /*gaps=*/true), b(at::kDouble, /*gaps=*/true);
    ASSERT_FALSE(b.parameters().front().is_non_overlapping_and_dense());
    const auto stock = one.stock(a.parameters());
    const auto flat = one.flat(b.parameters());
    EXPECT_LE(apart(a, *stock, b, *flat, 100), 1e-12) << one.name;
  }
}

TEST(FlatOptimizer, GoesOnFromTheStateOfLibtorchsAndBack) {
  for (const Case& one : cases()) {
    SmallModel a(at::kDouble), b(at::kDouble);
    auto first = one.stock(a.parameters()), second = one.flat(b.parameters());
    apart(a, *first, b, *second, 10);
    const State stock_state = state_of(*first, a), flat_state = state_of(*second, b);
    ASSERT_EQ(stock_state.size(), flat_state.size()) << one.name;
    // Crosswise, in new optimizers and in one that has moments of its own already.
    auto third = one.flat(a.parameters()), fourth = one.stock(b.parameters());
    load_into(*third, a, stock_state);
    load_into(*fourth, b, flat_state);
    EXPECT_LE(apart(a, *third, b, *fourth, 10, 10), 1e-12) << one.name;
    load_into(*second, b, state_of(*fourth, b));
    EXPECT_LE(apart(a, *third, b, *second, 10, 20), 1e-12) << one.name;
  }
}

TEST(FlatOptimizer, ParametersWithoutAGradientArePassedOver) {
  for (const Case& one : cases()) {
    SmallModel a(at::kDouble), b(at::kDouble);
    auto first = one.stock(a.parameters()), second = one.flat(b.parameters());
    for (int step = 0; step < 20; ++step) {
      for (SmallModel* model : {&a, &b}) {
        model->set_gradients(step);
        model->parameters()[static_cast<std::size_t>(step) % 3].mutable_grad() = at::Tensor();
      }
      first->step();
      second->step();
    }
    EXPECT_LE(a.distance(b), 1e-12) << one.name;
  }
}

TEST(FlatOptimizer, GroupsHaveOptionsOfTheirOwn) {
  SmallModel a(at::kDouble), b(at::kDouble);
  const auto groups = [](const SmallModel& model) {
    const Tensors all = model.parameters();
    std::vector<OptimizerParamGroup> result;
    result.emplace_back(Tensors{all[0]}, std::make_unique<AdamOptions>(AdamOptions(1e-3)));
    result.emplace_back(Tensors{all[1], all[2]},
                        std::make_unique<AdamOptions>(AdamOptions(1e-2).weight_decay(0.1)));
    return result;
  };
  torch::optim::Adam stock(groups(a));
  FlatAdam flat(groups(b));
  EXPECT_LE(apart(a, stock, b, flat, 20), 1e-12);
  for (torch::optim::Optimizer* one : {static_cast<torch::optim::Optimizer*>(&stock),
                                       static_cast<torch::optim::Optimizer*>(&flat)})
    one->param_groups()[1].options().set_lr(1e-4);
  EXPECT_LE(apart(a, stock, b, flat, 20, 20), 1e-12);
}

TEST(FlatOptimizer, TheFactorIsThatOfOneStepAndLeavesTheGradients) {
  SmallModel a(at::kDouble), b(at::kDouble);
  torch::optim::Adam stock(a.parameters(), AdamOptions(1e-2));
  FlatAdam flat(b.parameters(), AdamOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    a.set_gradients(step);
    b.set_gradients(step);
    for (const at::Tensor& parameter : a.parameters()) parameter.mutable_grad().mul_(0.25);
    flat.scale_gradients(0.5);
    flat.scale_gradients(0.5);
    const at::Tensor before = b.parameters()[0].grad().clone();
    stock.step();
    flat.step();
    EXPECT_TRUE(before.equal(b.parameters()[0].grad()));
    EXPECT_EQ(flat.gradient_factor(), 1);
  }
  EXPECT_LE(a.distance(b), 1e-12);
}

TEST(FlatOptimizer, UsesTheScaleOfReducedGradientsAndSkipsTheUnused) {
  SmallModel a(at::kDouble), b(at::kDouble);
  torch::optim::Adam stock(a.parameters(), AdamOptions(1e-2));
  FlatAdam flat(b.parameters(), AdamOptions(1e-2));
  for (int step = 0; step < 10; ++step) {
    a.set_gradients(step);
    b.set_gradients(step);
    for (const at::Tensor& parameter : a.parameters()) parameter.mutable_grad().div_(8);
    a.parameters()[1].mutable_grad() = at::Tensor();
    GradientBuckets all;
    all.scale = 1.0 / 8;
    all.buckets.resize(1);
    for (std::size_t i = 0; i < 3; ++i) {
      GradientSlot slot;
      slot.parameter = b.parameters()[i];
      slot.used = i != 1;
      all.buckets[0].slots.push_back(slot);
    }
    flat.use(all);
    stock.step();
    flat.step();
  }
  EXPECT_LE(a.distance(b), 1e-12);
}

TEST(FlatOptimizer, TheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<Tensors> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    SmallModel model(at::kFloat, false, /*width=*/300);  // more than a grain of elements
    FlatAdamW adam(model.parameters(), AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      model.set_gradients(step);
      clip_gradients(adam, 0.5);
      adam.step();
    }
    results.push_back(model.parameters());
  }
  at::set_num_threads(before);
  for (const Tensors& result : results)
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_TRUE(result[i].equal(results.front()[i]));
}

TEST(FlatOptimizer, GradientsOfAnotherTypeOrOrderAreTaken) {
  SmallModel a(at::kFloat), b(at::kFloat);
  torch::optim::Adam stock(a.parameters(), AdamOptions(1e-2));
  FlatAdam flat(b.parameters(), AdamOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    a.set_gradients(step);
    b.set_gradients(step);
    // The same numbers, the other dimension first in memory.
    at::Tensor& turned = b.parameters()[0].mutable_grad();
    turned = turned.t().contiguous().t();
    stock.step();
    flat.step();
  }
  EXPECT_LE(a.distance(b), 1e-5);
}

TEST(FlatOptimizer, AutogradSeesThatParametersHaveChanged) {
  SmallModel model(at::kFloat);
  FlatSgd sgd(model.parameters(), SGDOptions(1e-2));
  const at::Tensor weight = model.parameters()[0];
  const at::Tensor product = (weight * weight).sum();  // its gradient needs the weight
  model.set_gradients(0);
  sgd.step();
  EXPECT_THROW(product.backward(), c10::Error);
}

TEST(FlatOptimizer, MomentsLieInOneBlock) {
  SmallModel model(at::kFloat);
  FlatAdam adam(model.parameters(), AdamOptions(1e-2));
  model.set_gradients(0);
  adam.step();
  const State state = state_of(adam, model);
  std::vector<const void*> storages;
  for (const auto& entry : state) {
    const State one = entry.value().toGenericDict();
    EXPECT_EQ(one.at("step").toInt(), 1);
    storages.push_back(one.at("exp_avg").toTensor().storage().data());
  }
  ASSERT_EQ(storages.size(), 3U);
  EXPECT_EQ(storages[0], storages[1]);
  EXPECT_EQ(storages[0], storages[2]);
}

TEST(FlatOptimizer, SaysWhatItDoesNotDo) {
  SmallModel model(at::kFloat);
  const auto text = [](const std::function<void()>& run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(text([&] {
              FlatAdam(model.parameters(), AdamOptions().amsgrad(true));
            }).find("no amsgrad: use torch::optim's"),
            std::string::npos);
  FlatAdam adam(model.parameters());
  model.set_gradients(0);
  model.parameters()[1].mutable_grad() = model.parameters()[1].grad().to_sparse();
  const at::Tensor before = model.parameters()[0].detach().clone();
  EXPECT_NE(text([&] {
              adam.step();
            }).find("the gradient of parameter 1 of the optimizer ([6] Float) is sparse"),
            std::string::npos);
  EXPECT_TRUE(before.equal(model.parameters()[0]));  // nothing was done by halves
  // A checkpoint of amsgrad.
  SmallModel other(at::kFloat);
  torch::optim::Adam stock(other.parameters(), AdamOptions().amsgrad(true));
  other.set_gradients(0);
  stock.step();
  FlatAdam flat(other.parameters());
  load_into(flat, other, state_of(stock, other));
  EXPECT_NE(text([&] { flat.step(); }).find("is of amsgrad"), std::string::npos);
}

}  // namespace
}  // namespace af::train
