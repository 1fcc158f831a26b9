// SPDX-License-Identifier: Apache-2.0
#include "af/train/state_file.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <fstream>

#include "af/train/module_state.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

// Runs a Python program in `directory`; its output and "exit N". tests/wheel runs these tests with
// another Python, which has a current PyTorch.
std::string python(const fs::path& directory, const std::string& program) {
  const fs::path script = directory / "script.py";
  std::ofstream(script) << program;
  const std::string command =
      "cd '" + directory.string() +
      "' && ${AF_TEST_PYTHON:-/usr/bin/python3} script.py 2>&1; echo exit $?";
  FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return "no pipe";
  std::string output;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  pclose(pipe);
  return output;
}

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 5), torch::nn::Linear(5, 2));
}

void make_steps(torch::nn::Sequential& model, torch::optim::Adam& adam, int steps) {
  for (int step = 0; step < steps; ++step) {
    adam.zero_grad();
    model->forward(at::ones({4, 3}) * (step + 1)).pow(2).mean().backward();
    adam.step();
  }
}

class StateFileTest : public testing::Test {
 protected:
  TemporaryDirectory temporary_;
  fs::path path_ = temporary_ / "state.pt";
};

TEST_F(StateFileTest, ComesBackAsItWas) {
  State inner = make_state();
  inner.insert("weight", at::arange(6, at::kFloat).view({2, 3}));
  inner.insert("mask", at::tensor({1, 0}).to(at::kBool));
  State state = make_state();
  state.insert("model", inner);
  state.insert("epoch", int64_t{7});
  state.insert("done", true);
  state.insert("name", std::string("digits"));
  state.insert("nothing", c10::IValue());
  state.insert("empty", make_state());
  write_state(path_, state);

  const State read = read_state(path_);
  EXPECT_EQ(read.size(), 6U);
  EXPECT_TRUE(read.at("model").toGenericDict().at("weight").toTensor().equal(
      inner.at("weight").toTensor()));
  EXPECT_EQ(read.at("model").toGenericDict().at("mask").toTensor().scalar_type(), at::kBool);
  EXPECT_EQ(read.at("epoch").toInt(), 7);
  EXPECT_TRUE(read.at("done").toBool());
  EXPECT_EQ(read.at("name").toStringRef(), "digits");
  EXPECT_TRUE(read.at("nothing").isNone());
  EXPECT_EQ(read.at("empty").toGenericDict().size(), 0U);
}

TEST_F(StateFileTest, PythonLoadsItWithTheSafeLoaderToo) {
  auto model = make_model();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  make_steps(model, adam, 3);
  State state = make_state();
  state.insert("model", state_of(*model));
  state.insert("optimizer", state_of(adam, *model));
  state.insert("epoch", int64_t{4});
  write_state(path_, state);

  const std::string output = python(temporary_.path(), R"(
import torch
# torch.load's default is the free unpickler before 2.6 and the safe one after.
for options in ({}, {"weights_only": True}):
    state = torch.load("state.pt", **options)
    assert type(state) is dict, type(state)
    assert state["epoch"] == 4
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    model.load_state_dict(state["model"])
    assert list(state["optimizer"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert state["optimizer"]["1.bias"]["step"] == 3
    assert state["optimizer"]["0.weight"]["exp_avg"].shape == (5, 3)
print("sum %.6f" % sum(float(p.detach().double().sum()) for p in model.parameters()))
)");
  double sum = 0;
  for (const auto& parameter : model->parameters())
    sum += parameter.to(at::kDouble).sum().item<double>();
  EXPECT_EQ(output, fmt::format("sum {:.6f}\nexit 0\n", sum));
}

TEST_F(StateFileTest, PythonsPlainDictsAreRead) {
  ASSERT_EQ(python(temporary_.path(), R"(
import torch
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
for p in model.parameters():
    torch.nn.init.constant_(p, 0.25)
torch.save({"model": dict(model.state_dict()), "epoch": 3}, "state.pt")
)"),
            "exit 0\n");
  const State state = read_state(path_);
  EXPECT_EQ(state.at("epoch").toInt(), 3);
  auto model = make_model();
  load_into(*model, state.at("model").toGenericDict());
  for (const auto& parameter : model->parameters())
    EXPECT_TRUE(parameter.eq(0.25).all().item<bool>());
}

TEST_F(StateFileTest, WhatOnlyPythonReadsIsRefusedWithTheCure) {
  ASSERT_EQ(python(temporary_.path(), R"(
import torch
torch.save(torch.nn.Linear(3, 5).state_dict(), "state.pt")
)"),
            "exit 0\n");
  try {
    read_state(path_);
    FAIL() << "read an OrderedDict";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("dict(model.state_dict())"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos);
  }
}

TEST_F(StateFileTest, AViewIsWrittenWithoutTheRestOfItsStorage) {
  State state = make_state();
  state.insert("few", at::zeros({1000000}).narrow(0, 10, 100));
  write_state(path_, state);
  EXPECT_LT(fs::file_size(path_), 10000U);
}

TEST_F(StateFileTest, ErrorsSayWhatAndWhere) {
  State state = make_state();
  State inner = make_state();
  inner.insert("rate", 0.5);
  state.insert("hyper", inner);
  const auto error_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(error_of([&] { write_state(path_, state); }).find("hyper/rate"), std::string::npos);
  EXPECT_NE(error_of([&] {
              write_state(temporary_ / "none/state.pt", make_state());
            }).find("none/state.pt: No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_state(temporary_ / "none.pt"); }).find("none.pt"),
            std::string::npos);
  std::ofstream(path_) << "not a zip";
  EXPECT_NE(error_of([&] { read_state(path_); }).find(path_.string()), std::string::npos);
  if (fs::exists("/dev/full")) {
    State large = make_state();
    large.insert("x", at::zeros({100000}));
    EXPECT_NE(error_of([&] { write_state("/dev/full", large); }).find("No space left"),
              std::string::npos);
  }
}

TEST(ModuleState, ATrainingGoesOnAsIfNeverStopped) {
  auto model = make_model();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  make_steps(model, adam, 3);
  const TemporaryDirectory temporary;
  State saved = make_state();
  saved.insert("model", state_of(*model));
  saved.insert("optimizer", state_of(adam, *model));
  write_state(temporary / "state.pt", saved);
  make_steps(model, adam, 4);

  auto second = make_model();
  torch::optim::Adam second_adam(second->parameters(), torch::optim::AdamOptions(0.01));
  const State state = read_state(temporary / "state.pt");
  load_into(*second, state.at("model").toGenericDict());
  load_into(second_adam, *second, state.at("optimizer").toGenericDict());
  make_steps(second, second_adam, 4);
  for (size_t i = 0; i < model->parameters().size(); ++i)
    EXPECT_TRUE(second->parameters()[i].equal(model->parameters()[i])) << i;
}

TEST(ModuleState, AMisfitIsNamedAndChangesNothing) {
  auto model = make_model();
  const auto before = model->parameters()[0].clone();
  const auto error_of = [&](const State& state) -> std::string {
    try {
      load_into(*model, state);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto other = [] {
    State state = make_state();
    for (const auto& entry : state_of(*make_model()))
      state.insert(entry.key(), entry.value().toTensor() + 1);
    return state;
  };
  State state = other();
  ASSERT_EQ(state.erase("1.bias"), 1U);
  EXPECT_EQ(error_of(state), "the state has no tensor 1.bias");
  state = other();
  state.insert_or_assign("1.bias", at::zeros({3}));
  EXPECT_EQ(error_of(state), "1.bias has the shape [3] in the state and [2] in the model");
  state = other();
  state.insert("2.bias", at::zeros({3}));
  EXPECT_EQ(error_of(state), "the state has 2.bias, which the model does not");
  state = other();
  state.insert_or_assign("0.bias", int64_t{1});
  EXPECT_EQ(error_of(state), "0.bias in the state is not a tensor");
  EXPECT_TRUE(model->parameters()[0].equal(before));
}

}  // namespace
}  // namespace af::train
