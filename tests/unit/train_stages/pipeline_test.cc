// SPDX-License-Identifier: Apache-2.0
#include "af/train/pipeline.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>

#include "af/communicator.h"
#include "common/error.h"

namespace af::train {
namespace {

namespace nn = torch::nn;

const at::Device kCpu{at::kCPU};
const auto kMeanSquare = [](const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(outputs.at(0), targets.at(0));
};

at::Tensor values(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

// Layers of width 6, in as many stages as asked for.
std::vector<nn::Sequential> make_parts(int stages) {
  std::vector<nn::Sequential> parts;
  for (int i = 0; i < stages; ++i) {
    nn::Sequential part(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6));
    part->to(at::kDouble);
    parts.push_back(part);
  }
  return parts;
}

std::vector<PipelineStage> make_stages(const std::vector<nn::Sequential>& parts) {
  std::vector<PipelineStage> stages;
  for (std::size_t i = 0; i < parts.size(); ++i)
    stages.push_back(stage("part" + std::to_string(i), parts[i], kCpu));
  return stages;
}

void set_autocast(bool enabled) {
#if TORCH_VERSION_MAJOR < 2
  at::autocast::set_cpu_enabled(enabled);
#else
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
#endif
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters)
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                  double within) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (!a[i].defined()) continue;
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), within) << i;
  }
}

// What the step throws, as text.
std::string failure_of(Pipeline& model, const Pipeline::Loss& loss = kMeanSquare) {
  try {
    model.step({values({8, 6})}, {values({8, 6})}, loss);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

struct Case {
  int stages, micro_batches, rows;
  PipelineSchedule schedule;
};
class PipelineGradients : public testing::TestWithParam<Case> {};

TEST_P(PipelineGradients, AreThoseOfTheUnsplitModel) {
  const Case c = GetParam();
  torch::manual_seed(3);
  const auto parts = make_parts(c.stages);
  const at::Tensor x = values({c.rows, 6});
  const at::Tensor y = values({c.rows, 6});
  Pipeline model(make_stages(parts), {c.micro_batches, c.schedule});

  at::Tensor hidden = x;
  for (nn::Sequential part : parts) hidden = part->forward(hidden);
  const at::Tensor whole = at::mse_loss(hidden, y);
  whole.backward();
  const auto expected = gradients_of(model.parameters());

  model.zero_grad();
  const at::Tensor mean = model.step({x}, {y}, kMeanSquare);
  EXPECT_NEAR(mean.item<double>(), whole.item<double>(), 1e-12);
  EXPECT_FALSE(mean.requires_grad());
  expect_equal(gradients_of(model.parameters()), expected, 1e-12);

  // A second step adds to what is there, in the same memory: views of buckets stay views.
  const void* memory = model.parameters().front().grad().data_ptr();
  model.step({x}, {y}, kMeanSquare);
  EXPECT_EQ(model.parameters().front().grad().data_ptr(), memory);
  std::vector<at::Tensor> twice;
  for (const at::Tensor& gradient : expected) twice.push_back(gradient * 2);
  expect_equal(gradients_of(model.parameters()), twice, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PipelineGradients,
    testing::Values(Case{1, 1, 8, PipelineSchedule::one_forward_one_backward},
                    Case{2, 4, 8, PipelineSchedule::one_forward_one_backward},
                    Case{2, 4, 8, PipelineSchedule::gpipe},
                    Case{2, 4, 7, PipelineSchedule::one_forward_one_backward},  // one is smaller
                    Case{2, 4, 3, PipelineSchedule::one_forward_one_backward},  // fewer rows
                    Case{2, 1, 5, PipelineSchedule::one_forward_one_backward},
                    Case{4, 3, 11, PipelineSchedule::one_forward_one_backward},
                    Case{5, 8, 13, PipelineSchedule::gpipe}));

TEST(Pipeline, BothSchedulesGiveTheSameBits) {
  std::vector<std::vector<at::Tensor>> found;
  for (const auto schedule :
       {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe}) {
    torch::manual_seed(5);
    Pipeline model(make_stages(make_parts(3)), {5, schedule});
    model.step({values({13, 6})}, {values({13, 6})}, kMeanSquare);
    found.push_back(gradients_of(model.parameters()));
  }
  expect_equal(found[0], found[1], 0);
}

// Both stages of a step run at once: each waits until the other one is in the middle of its work.
TEST(Pipeline, StagesWorkAtTheSameTime) {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool met = false;
  const auto meet = [&] {
    std::unique_lock lock(mutex);
    ++inside;
    if (inside == 2) met = true;
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return met; });
    --inside;
  };
  const auto parts = make_parts(2);
  auto stages = make_stages(parts);
  int calls = 0;
  // The first one works on its second micro-batch, the other one on its first.
  stages[0].forward = [&, part = parts[0]](const Tensors& inputs) mutable {
    if (calls++ == 1) meet();
    return Tensors{part->forward(inputs.at(0))};
  };
  stages[1].forward = [&, part = parts[1], first = true](const Tensors& inputs) mutable {
    if (std::exchange(first, false)) meet();
    return Tensors{part->forward(inputs.at(0))};
  };
  Pipeline model(stages, {2});
  model.step({values({4, 6})}, {values({4, 6})}, kMeanSquare);
  EXPECT_TRUE(met);
}

// A hidden state with a gradient, one that is not used, a mask and an index, and nothing at all.
TEST(Pipeline, PassesTuplesWithAndWithoutGradients) {
  torch::manual_seed(7);
  nn::Linear first(6, 6);
  nn::Linear second(6, 1);
  first->to(at::kDouble);
  second->to(at::kDouble);
  const auto front = [first](const Tensors& in) {
    const at::Tensor hidden = nn::Linear(first)->forward(in.at(0));
    return Tensors{hidden, hidden * 2, in.at(0).gt(0), in.at(1), at::Tensor()};
  };
  const auto back = [second](const Tensors& in) {
    EXPECT_TRUE(in.at(0).requires_grad());
    EXPECT_FALSE(in.at(2).requires_grad());
    EXPECT_EQ(in.at(3).scalar_type(), at::kLong);
    EXPECT_FALSE(in.at(4).defined());
    return Tensors{nn::Linear(second)->forward(in.at(0) * in.at(2)).squeeze(1) * in.at(3)};
  };
  const at::Tensor x = values({9, 6});
  const at::Tensor factor = at::arange(9, at::kLong);
  const at::Tensor y = values({9});

  const at::Tensor whole = kMeanSquare(back(front({x, factor})), {y});
  whole.backward();
  Pipeline model({{"front", first.ptr(), kCpu, front}, {"back", second.ptr(), kCpu, back}}, {4});
  const auto expected = gradients_of(model.parameters());
  model.zero_grad();
  EXPECT_NEAR(model.step({x, factor}, {y}, kMeanSquare).item<double>(), whole.item<double>(),
              1e-12);
  expect_equal(gradients_of(model.parameters()), expected, 1e-12);
}

TEST(Pipeline, AFrozenStageGetsNoGradient) {
  torch::manual_seed(9);
  const auto parts = make_parts(3);
  for (const at::Tensor& parameter : parts[0]->parameters()) parameter.set_requires_grad(false);
  Pipeline model(make_stages(parts), {3});
  model.step({values({6, 6})}, {values({6, 6})}, kMeanSquare);
  for (const at::Tensor& parameter : parts[0]->parameters())
    EXPECT_FALSE(parameter.grad().defined());
  for (const at::Tensor& parameter : parts[1]->parameters())
    EXPECT_TRUE(parameter.grad().defined());
}

TEST(Pipeline, ForwardIsThatOfTheUnsplitModelAndCanBeDifferentiated) {
  torch::manual_seed(11);
  auto parts = make_parts(3);
  Pipeline model(make_stages(parts), {4});
  const at::Tensor x = values({10, 6});
  at::Tensor expected = x;
  for (nn::Sequential& part : parts) expected = part->forward(expected);
  {
    const at::NoGradGuard no_grad;
    const Tensors outputs = model.forward({x});
    ASSERT_EQ(outputs.size(), 1U);
    EXPECT_FALSE(outputs[0].requires_grad());
    EXPECT_TRUE(at::allclose(outputs[0], expected, 0, 1e-12));
  }
  expected.square().sum().backward();
  const auto gradients = gradients_of(model.parameters());
  model.zero_grad();
  model.forward({x}).at(0).square().sum().backward();
  expect_equal(gradients_of(model.parameters()), gradients, 1e-12);
}

TEST(Pipeline, WithoutGradModeAStepIsTheLossAlone) {
  Pipeline model(make_stages(make_parts(2)), {3});
  const at::NoGradGuard no_grad;
  EXPECT_GT(model.step({values({7, 6})}, {values({7, 6})}, kMeanSquare).item<double>(), 0);
  for (const at::Tensor& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// Dropout in both stages, which on the CPU share the default generator: the same seed gives the
// same numbers, another step others, and micro-batches differ.
TEST(Pipeline, DropoutIsTheSameAgain) {
  const auto run = [](int steps) {
    torch::manual_seed(13);
    std::vector<PipelineStage> stages;
    for (int i = 0; i < 2; ++i) {
      nn::Sequential part(nn::Linear(64, 64), nn::Dropout(0.5), nn::Linear(64, 64),
                          nn::Dropout(0.5));
      stages.push_back(stage("part" + std::to_string(i), part, kCpu));
    }
    Pipeline model(stages, {8});
    const at::Tensor x = at::randn({16, 64});
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i)
      losses.push_back(model.step({x}, {at::zeros({16, 64})}, kMeanSquare).item<double>());
    auto found = gradients_of(model.parameters());
    found.push_back(at::tensor(losses, at::kDouble));
    return found;
  };
  const auto once = run(6);
  for (int i = 0; i < 5; ++i) expect_equal(run(6), once, 0);
  const at::Tensor losses = once.back();
  EXPECT_NE(losses[0].item<double>(), losses[1].item<double>());
}

// The first stage draws for micro-batch 1 before the second one draws for micro-batch 0, or behind
// it: which, is the threads' affair, and here the test's.
TEST(Pipeline, DropoutIsTheSameWhicheverStageIsFaster) {
  const auto run = [](bool second_is_slow) {
    torch::manual_seed(13);
    nn::Dropout first(0.5);
    nn::Dropout second(0.5);
    std::promise<void> faster;
    const auto drop = [&faster](nn::Dropout& stage, bool slow, bool fast, const at::Tensor& in) {
      if (slow) {
        EXPECT_EQ(faster.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
      }
      Tensors out{stage->forward(in)};
      if (fast) faster.set_value();
      return out;
    };
    int of_first = 0;
    int of_second = 0;
    Pipeline model(
        {{"first", first.ptr(), kCpu,
          [&](const Tensors& in) {
            const bool counts = of_first++ == 1;
            return drop(first, counts && !second_is_slow, counts && second_is_slow, in.at(0));
          }},
         {"second", second.ptr(), kCpu,
          [&](const Tensors& in) {
            const bool counts = of_second++ == 0;
            return drop(second, counts && second_is_slow, counts && !second_is_slow, in.at(0));
          }}},
        {2});
    const at::NoGradGuard no_grad;
    return model.forward({at::ones({2, 200})}).at(0);
  };
  const at::Tensor once = run(true);
  EXPECT_GT(once.max().item<double>(), 0);
  EXPECT_TRUE(run(false).equal(once));
}

TEST(Pipeline, DropoutDiffersBetweenMicroBatchesAndStages) {
  nn::Dropout first(0.5);
  nn::Dropout second(0.5);
  Pipeline model({{"first", first.ptr(), kCpu,
                   [first](const Tensors& in) mutable {
                     return Tensors{first->forward(in.at(0)), in.at(0)};
                   }},
                  {"second", second.ptr(), kCpu,
                   [second](const Tensors& in) mutable {
                     return Tensors{in.at(0), second->forward(in.at(1))};
                   }}},
                 {2});
  const at::NoGradGuard no_grad;
  const Tensors outputs = model.forward({at::ones({2, 200})});
  EXPECT_FALSE(outputs[0][0].equal(outputs[0][1]));
  EXPECT_FALSE(outputs[0].equal(outputs[1]));
  // Half of them, twice as large: it is dropout and no constant.
  EXPECT_NEAR(outputs[0].mean().item<double>(), 1, 0.3);
  model.module().eval();
  EXPECT_TRUE(model.forward({at::ones({2, 200})})[1].equal(at::ones({2, 200})));
}

TEST(Pipeline, ThreadsHaveTheCallersAutocastAndItsType) {
  torch::manual_seed(15);
  std::vector<PipelineStage> stages;
  std::vector<at::ScalarType> seen;
  std::mutex mutex;
  for (int i = 0; i < 2; ++i) {
    nn::Linear part(8, 8);
    PipelineStage one = stage("part" + std::to_string(i), part, kCpu);
    one.forward = [&, part](const Tensors& in) mutable {
      const at::Tensor out = part->forward(in.at(0));
      const std::lock_guard lock(mutex);
      seen.push_back(out.scalar_type());
      return Tensors{out};
    };
    stages.push_back(one);
  }
  Pipeline model(stages, {2});
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::mse_loss(outputs.at(0).to(at::kFloat), targets.at(0));
  };
  set_autocast(true);
  at::autocast::increment_nesting();
  model.step({at::randn({4, 8})}, {at::randn({4, 8})}, loss);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(false);
  EXPECT_EQ(seen, std::vector<at::ScalarType>(4, at::kBFloat16));
  for (const at::Tensor& parameter : model.parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    EXPECT_GT(parameter.grad().abs().sum().item<double>(), 0);
  }
  seen.clear();
  model.step({at::randn({4, 8})}, {at::randn({4, 8})}, loss);
  EXPECT_EQ(seen, std::vector<at::ScalarType>(4, at::kFloat));
}

// Whichever stage fails, and wherever, the step ends on all with its name, and the next one works.
TEST(Pipeline, AFailureNamesTheStageAndEndsTheStep) {
  for (int failing = 0; failing < 3; ++failing) {
    const auto parts = make_parts(3);
    auto stages = make_stages(parts);
    auto calls = std::make_shared<int>(0);
    stages[static_cast<std::size_t>(failing)].forward =
        [part = parts[static_cast<std::size_t>(failing)], calls](const Tensors& in) mutable {
          if (++*calls == 3) throw std::runtime_error("out of beans");
          return Tensors{part->forward(in.at(0))};
        };
    Pipeline model(stages, {4});
    EXPECT_EQ(failure_of(model), "stage " + std::to_string(failing + 1) + " of 3, part" +
                                     std::to_string(failing) +
                                     ", on cpu, micro-batch 3 of 4, forward: out of beans");
    model.zero_grad();
    EXPECT_EQ(failure_of(model), "no failure");
  }
}

TEST(Pipeline, AFailureOfBackwardOrOfTheLossIsNamedToo) {
  Pipeline model(make_stages(make_parts(2)), {2});
  const auto fails_behind = [](const Tensors& outputs, const Tensors&) {
    at::Tensor out = outputs.at(0).exp();
    const at::Tensor loss = out.sum();
    out.detach().add_(1);  // exp's backward needs what it returned
    return loss;
  };
  const std::string backward = failure_of(model, fails_behind);
  EXPECT_EQ(backward.find("stage 2 of 2, part1, on cpu, micro-batch 1 of 2, backward: "), 0U)
      << backward;
  EXPECT_NE(backward.find("inplace operation"), std::string::npos) << backward;
  EXPECT_EQ(backward.find("frame #"), std::string::npos) << backward;
  const std::string loss =
      failure_of(model, [](const Tensors& outputs, const Tensors&) { return outputs.at(0); });
  EXPECT_NE(loss.find("the loss is a tensor of 24 numbers"), std::string::npos) << loss;
  const std::string constant =
      failure_of(model, [](const Tensors&, const Tensors&) { return at::ones({}); });
  EXPECT_NE(constant.find("nothing to learn"), std::string::npos) << constant;
}

TEST(Pipeline, ACommunicatorErrorStaysOne) {
  const auto parts = make_parts(2);
  auto stages = make_stages(parts);
  stages[1].forward = [](const Tensors&) -> Tensors {
    throw CommunicatorError(CommunicatorError::Kind::aborted, "the world is no more");
  };
  Pipeline model(stages, {2});
  EXPECT_THROW(model.step({values({8, 6})}, {values({8, 6})}, kMeanSquare), CommunicatorError);
}

TEST(Pipeline, WhatCannotBeIsRefused) {
  const auto refusal = [](const std::function<void()>& run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "fine";
  };
  const auto parts = make_parts(2);
  auto stages = make_stages(parts);
  stages[1].name = "part0";
  EXPECT_NE(refusal([&] { Pipeline model(stages); }).find("named part0"), std::string::npos);
  stages[1].name = "a.b";
  EXPECT_NE(refusal([&] { Pipeline model(stages); }).find("'a.b'"), std::string::npos);
  stages[1].name = "again";
  stages[1].module = parts[0].ptr();
  EXPECT_NE(refusal([&] { Pipeline model(stages); }).find("also belongs to stage part0"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { Pipeline model({}); }), "a pipeline needs at least one stage");
  EXPECT_NE(refusal([&] { Pipeline model(make_stages(parts), {0}); }).find("0 micro-batches"),
            std::string::npos);
  stages = make_stages(parts);
  stages[1].device = at::Device(at::kCUDA, 100);
  EXPECT_NE(refusal([&] { Pipeline model(stages); }).find("--af-gpus-per-worker=2"),
            std::string::npos);

  Pipeline model(make_stages(parts));
  const auto step = [&](const Tensors& inputs, const Tensors& targets) {
    return refusal([&] { model.step(inputs, targets, kMeanSquare); });
  };
  EXPECT_NE(step({values({4, 6})}, {values({5, 6})}).find("one has 4, another 5"),
            std::string::npos);
  EXPECT_NE(step({values({0, 6})}, {values({0, 6})}).find("no rows"), std::string::npos);
  EXPECT_NE(step({}, {}).find("at least one input"), std::string::npos);
  EXPECT_NE(step({values({})}, {}).find("has no axis"), std::string::npos);
}

TEST(Pipeline, TheWholeModelHasTheStagesNames) {
  Pipeline model(make_stages(make_parts(2)));
  std::vector<std::string> names;
  for (const auto& item : model.module().named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names.front(), "part0.0.weight");
  EXPECT_EQ(names.back(), "part1.2.bias");
  EXPECT_EQ(model.parameters().size(), 8U);
}

}  // namespace
}  // namespace af::train
