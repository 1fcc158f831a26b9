// SPDX-License-Identifier: Apache-2.0
// What sharded models may look like, and how they fail.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <mutex>
#include <thread>

#include "common/error.h"
#include "tests/unit/train_fsdp/sharded_chain.h"

namespace af::train::test {
namespace {

using torch::nn::Linear;

class Fsdp : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// Runs `body` as each rank; what each threw, empty for nothing.
std::vector<std::string> texts_of(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  with_threads(one_node(ranks), [&](Communicator& world) {
    try {
      body(world);
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return texts;
}

at::Tensor rows_of(const at::Tensor& all, Communicator& world) {
  const int64_t rows = all.size(0);
  const int64_t first = rows * world.rank() / world.world_size();
  return all.narrow(0, first, rows * (world.rank() + 1) / world.world_size() - first);
}

// Trains `make()` alone and sharded by `units`, three steps of SGD, on rows of `x`; the parameters
// have to be the same. A model has loss(x).
template <typename Model>
void expect_same_training(const std::function<std::shared_ptr<Model>()>& make, const at::Tensor& x,
                          const std::vector<std::string>& units, int ranks) {
  const auto alone = make();
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : alone->parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  torch::optim::SGD sgd(trained, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    alone->loss(x).backward();
    sgd.step();
  }
  with_threads(one_node(ranks), [&](Communicator& world) {
    const auto model = make();
    FullyShardedOptions options = any_size();
    options.units = units;
    FullyShardedDataParallel fsdp(*model, world, options);
    torch::optim::SGD shards(fsdp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const at::Tensor mine = rows_of(x, world);
    for (int step = 0; step < 3; ++step) {
      fsdp.backward(fsdp.forward([&] { return model->loss(mine); }), mine.size(0));
      shards.step();
    }
    EXPECT_LT(largest_difference(whole_values(fsdp), values_of(*alone)), 1e-12);
  });
}

template <typename Model>
std::shared_ptr<Model> filled() {
  auto model = std::make_shared<Model>();
  model->to(at::kDouble);
  fill_by_name(*model);
  return model;
}

const at::Tensor& rows() {
  static const at::Tensor x = wave({12, 6}, 0.7, at::kDouble);
  return x;
}

// Units that return a pair of a tensor and a tuple, of which some go nowhere; one with a parameter
// that it does not use; one that does not run at all.
struct Forked : torch::nn::Module {
  struct Fork : torch::nn::Module {
    Linear left{register_module("left", Linear(6, 5))};
    Linear right{register_module("right", Linear(6, 5))};
    Linear nowhere{register_module("nowhere", Linear(6, 5))};
    Linear unused{register_module("unused", Linear(3, 3))};
    using Output = std::pair<at::Tensor, std::tuple<std::vector<at::Tensor>, int>>;
    Output forward(const at::Tensor& x) {
      return {left->forward(x), {{right->forward(x), nowhere->forward(x)}, 7}};
    }
  };
  std::shared_ptr<Fork> fork{register_module("fork", std::make_shared<Fork>())};
  Linear idle{register_module("idle", Linear(5, 5))};
  Linear join{register_module("join", Linear(5, 2))};

  at::Tensor loss(const at::Tensor& x) {
    const auto [left, rest] = run_unit(*fork, [&] { return fork->forward(x); });
    EXPECT_EQ(std::get<1>(rest), 7);
    const at::Tensor both = at::tanh(left) + std::get<0>(rest)[0];
    return run_unit(*join, [&] { return join->forward(both); }).square().mean();
  }
};

TEST_F(Fsdp, SeveralOutputsAndUnusedParameters) {
  for (const int ranks : {1, 3})
    expect_same_training<Forked>(filled<Forked>, rows(), {"fork", "idle", "join"}, ranks);
}

TEST_F(Fsdp, TheShardOfAUnitThatDidNotRunHasNoGradient) {
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = filled<Forked>();
    FullyShardedOptions options = any_size();
    options.units = {"fork", "idle", "join"};
    FullyShardedDataParallel fsdp(*model, world, options);
    fsdp.backward(fsdp.forward([&] { return model->loss(rows()); }), 12);
    const auto shards = fsdp.parameters();
    ASSERT_EQ(shards.size(), 3u);
    EXPECT_TRUE(shards[0].grad().defined());
    EXPECT_FALSE(shards[1].grad().defined());
    EXPECT_TRUE(shards[2].grad().defined());
    fsdp.zero_grad();
    EXPECT_FALSE(fsdp.parameters()[0].grad().defined());
  });
}

// A unit that runs three times in a step, between others.
struct Repeated : torch::nn::Module {
  Linear again{register_module("again", Linear(6, 6))};
  Linear other{register_module("other", Linear(6, 6))};
  Linear last{register_module("last", Linear(6, 1))};
  at::Tensor loss(const at::Tensor& input) {
    at::Tensor x = input;
    for (int i = 0; i < 3; ++i) {
      x = run_unit(*again, [&] { return at::tanh(again->forward(x)); });
      x = run_unit(*other, [&] { return at::tanh(other->forward(x)); });
    }
    return run_unit(*last, [&] { return last->forward(x); }).square().mean();
  }
};

TEST_F(Fsdp, AUnitThatRunsSeveralTimes) {
  for (const int ranks : {2, 3})
    expect_same_training<Repeated>(filled<Repeated>, rows(), {"again", "other", "last"}, ranks);
}

// Units within units: the outer one has a layer before and one behind the inner ones.
struct Nested : torch::nn::Module {
  struct Outer : torch::nn::Module {
    Linear before{register_module("before", Linear(6, 6))};
    Linear inner{register_module("inner", Linear(6, 6))};
    Linear second{register_module("second", Linear(6, 6))};
    Linear behind{register_module("behind", Linear(6, 6))};
    at::Tensor forward(at::Tensor x) {
      x = at::tanh(before->forward(x));
      x = run_unit(*inner, [&] { return at::tanh(inner->forward(x)); });
      x = run_unit(*second, [&] { return at::tanh(second->forward(x)); });
      return behind->forward(x);
    }
  };
  std::shared_ptr<Outer> outer{register_module("outer", std::make_shared<Outer>())};
  Linear first{register_module("first", Linear(6, 6))};
  Linear last{register_module("last", Linear(6, 1))};
  at::Tensor loss(at::Tensor x) {
    x = run_unit(*first, [&] { return at::tanh(first->forward(x)); });
    x = run_unit(*outer, [&] { return outer->forward(x); });
    return run_unit(*last, [&] { return last->forward(x); }).square().mean();
  }
};

TEST_F(Fsdp, UnitsWithinUnits) {
  expect_same_training<Nested>(filled<Nested>, rows(),
                               {"first", "outer", "outer.inner", "outer.second", "last"}, 2);
}

// A matrix that two units have in common, and a parameter of the model itself.
struct Tied : torch::nn::Module {
  struct Half : torch::nn::Module {
    explicit Half(const at::Tensor& shared) : matrix(register_parameter("matrix", shared)) {
      bias = register_parameter("bias", at::empty({6}));
    }
    at::Tensor matrix, bias;
  };
  Tied() {
    const at::Tensor shared = at::empty({6, 6}).set_requires_grad(true);
    in = register_module("in", std::make_shared<Half>(shared));
    out = register_module("out", std::make_shared<Half>(in->matrix));
    scale = register_parameter("scale", at::empty({6}));
  }
  std::shared_ptr<Half> in, out;
  at::Tensor scale;
  at::Tensor loss(at::Tensor x) {
    x = run_unit(*in, [&] { return at::tanh(at::matmul(x, in->matrix) + in->bias); });
    x = x * scale;
    x = run_unit(*out, [&] { return at::matmul(x, out->matrix.t()) + out->bias; });
    return x.square().mean();
  }
};

TEST_F(Fsdp, ParametersOfTwoUnitsAreOnce) {
  const auto make = [] {
    auto model = std::make_shared<Tied>();
    // (to() would make two tensors of the shared one.)
    const at::NoGradGuard no_grad;
    for (auto& item : model->named_parameters())
      item.value().set_data(wave(item.value().sizes().vec(), 1.3, at::kDouble) * 0.3);
    return model;
  };
  const auto alone = make();
  torch::optim::SGD sgd({alone->in->matrix, alone->in->bias, alone->out->bias, alone->scale},
                        torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    alone->loss(rows()).backward();
    sgd.step();
  }
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = make();
    FullyShardedOptions options = any_size();
    options.units = {"in", "out"};
    FullyShardedDataParallel fsdp(*model, world, options);
    torch::optim::SGD shards(fsdp.parameters(), torch::optim::SGDOptions(0.1));
    const at::Tensor mine = rows_of(rows(), world);
    for (int step = 0; step < 3; ++step) {
      fsdp.backward(fsdp.forward([&] { return model->loss(mine); }), mine.size(0));
      shards.step();
    }
    Values wanted = values_of(*alone);
    const Values values = whole_values(fsdp);
    EXPECT_EQ(values.size(), 4u);
    for (const auto& [name, value] : values)
      EXPECT_LT((value - wanted.at(name)).abs().max().item<double>(), 1e-12) << name;
  });
}

// Frozen layers, and f32 beside f64 in one unit.
struct Mixed : torch::nn::Module {
  struct Part : torch::nn::Module {
    Linear frozen{register_module("frozen", Linear(6, 6))};
    Linear narrow{register_module("narrow", Linear(6, 6))};
    Linear wide{register_module("wide", Linear(6, 6))};
    at::Tensor forward(at::Tensor x) {
      x = at::tanh(frozen->forward(x));
      x = at::tanh(narrow->forward(x.to(at::kFloat))).to(at::kDouble);
      return wide->forward(x);
    }
  };
  std::shared_ptr<Part> part{register_module("part", std::make_shared<Part>())};
  Linear frozen{register_module("frozen", Linear(6, 6))};
  at::Tensor loss(at::Tensor x) {
    x = run_unit(*part, [&] { return part->forward(x); });
    return run_unit(*frozen, [&] { return frozen->forward(x); }).square().mean();
  }
};

TEST_F(Fsdp, FrozenParametersAndSeveralTypesInAUnit) {
  const auto make = [] {
    auto model = filled<Mixed>();
    model->part->narrow->to(at::kFloat);
    for (Linear& frozen : std::vector<Linear>{model->frozen, model->part->frozen})
      for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    return model;
  };
  const auto before = make();
  const auto alone = make();
  std::vector<at::Tensor> trained;
  for (const Linear& one : std::vector<Linear>{alone->part->narrow, alone->part->wide})
    for (const at::Tensor& parameter : one->parameters()) trained.push_back(parameter);
  torch::optim::Adam adam(trained, torch::optim::AdamOptions(1e-2).weight_decay(0.1));
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    alone->loss(rows()).backward();
    adam.step();
  }
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = make();
    FullyShardedOptions options = any_size();
    options.units = {"part", "frozen"};
    FullyShardedDataParallel fsdp(*model, world, options);
    EXPECT_EQ(fsdp.parameters().size(), 2u);
    torch::optim::Adam shards(fsdp.parameters(), torch::optim::AdamOptions(1e-2).weight_decay(0.1));
    const at::Tensor mine = rows_of(rows(), world);
    for (int step = 0; step < 3; ++step) {
      fsdp.backward(fsdp.forward([&] { return model->loss(mine); }), mine.size(0));
      shards.step();
    }
    EXPECT_LT(largest_difference(whole_values(fsdp), values_of(*alone)), 1e-5);
    const Values values = whole_values(fsdp);
    EXPECT_TRUE(values.at("frozen.weight").equal(before->frozen->weight));
    EXPECT_TRUE(values.at("part.frozen.bias").equal(before->part->frozen->bias));
    EXPECT_EQ(values.at("part.narrow.weight").scalar_type(), at::kFloat);
  });
}

TEST_F(Fsdp, HalfPrecisionParameters) {
  with_threads(one_node(2), [&](Communicator& world) {
    auto model = std::make_shared<torch::nn::SequentialImpl>(Linear(4, 4));
    model->to(at::kBFloat16);
    FullyShardedOptions options = any_size();
    options.units = {"0"};
    FullyShardedDataParallel fsdp(*model, world, options);
    torch::nn::Sequential parts(model);
    const at::Tensor x = at::ones({2, 4}, at::kBFloat16);
    fsdp.backward(fsdp.forward([&] { return run_sequential(parts, x).sum(); }), 2);
    // Each rank's gradient of the sum over its two rows is 2 everywhere.
    const at::Tensor gradient = fsdp.parameters()[0].grad().to(at::kFloat);
    EXPECT_EQ(gradient.max().item<float>(), 2);
  });
}

TEST_F(Fsdp, RankZeroGivesParametersAndBuffers) {
  struct Normed : torch::nn::Module {
    torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(6))};
  };
  with_threads(one_node(2), [&](Communicator& world) {
    Normed model;
    {
      const at::NoGradGuard no_grad;
      model.norm->weight.fill_(3.0 + world.rank());
      model.norm->running_mean.fill_(5.0 + world.rank());
    }
    FullyShardedOptions options = any_size();
    options.units = {"norm"};
    FullyShardedDataParallel fsdp(model, world, options);
    EXPECT_EQ(whole_values(fsdp).at("norm.weight").max().item<float>(), 3);
    EXPECT_EQ(model.norm->running_mean.max().item<float>(), 5);
    EXPECT_EQ(model.norm->num_batches_tracked.item<int64_t>(), 0);
    const at::Tensor x = wave({8, 6}, 0.9 + world.rank(), at::kFloat);
    const auto forward = [&] {
      return fsdp.forward([&] {
        return run_unit(*model.norm, [&] { return model.norm->forward(x); }).square().mean();
      });
    };
    fsdp.backward(forward(), 8);
    fsdp.backward(forward(), 8);  // begins with rank 0's means of the first
    std::vector<double> mean{model.norm->running_mean[0].item<double>()};
    EXPECT_EQ(model.norm->num_batches_tracked.item<int64_t>(), 2);
    // Those of rank 1 went: the first step's mean of its rows would be in there twice.
    const double own = x.mean(0)[0].item<double>();
    const at::Tensor other = wave({8, 6}, 0.9, at::kFloat);
    const double first = 0.9 * 5 + 0.1 * other.mean(0)[0].item<double>();
    EXPECT_NEAR(mean[0], 0.9 * first + 0.1 * own, 1e-5);
  });
}

TEST_F(Fsdp, ParametersAreEmptyBetweenRuns) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    for (const at::Tensor& parameter : model->parameters()) EXPECT_EQ(parameter.numel(), 0);
    EXPECT_ANY_THROW(model->forward(one.x));  // a shape that does not fit, from torch
  });
}

// Units that are not worth it are whole all the time: one shard for all.
TEST_F(Fsdp, SmallUnitsAreLeftInTheRoot) {
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = filled<Nested>();
    FullyShardedOptions options;
    options.units = {"first", "outer", "outer.inner", "last"};
    options.smallest_unit_bytes = model->first->weight.nbytes();  // without its bias
    EXPECT_EQ(FullyShardedDataParallel(*filled<Nested>(), world, options).parameters().size(), 4u);
    options.smallest_unit_bytes = std::size_t{64} << 10;
    FullyShardedDataParallel fsdp(*model, world, options);
    EXPECT_EQ(fsdp.parameters().size(), 1u);
    const auto result = fsdp.backward(fsdp.forward([&] { return model->loss(rows()); }), 12);
    const at::Tensor alone = filled<Nested>()->loss(rows());
    EXPECT_NEAR(result.loss, alone.item<double>(), 1e-12);
    EXPECT_EQ(fsdp.run(*model->first, [&] { return model->first->forward(rows()).size(1); }), 6);
  });
}

TEST_F(Fsdp, DifferentUnitsAreAnErrorThatNamesTheRank) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  for (const std::string& text : texts_of(3, [&](Communicator& world) {
         const auto model = one.make();
         FullyShardedOptions options = by_parts(*model);
         if (world.rank() == 2) options.units.erase(options.units.begin() + 1);
         FullyShardedDataParallel fsdp(*model, world, options);
       })) {
    EXPECT_NE(text.find("rank 2 has other units"), std::string::npos) << text;
    EXPECT_NE(text.find("which has unit part1"), std::string::npos) << text;
  }
}

TEST_F(Fsdp, UnknownUnitsAndCallsAreErrors) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  const auto text_of = [&](const std::function<void(FullyShardedDataParallel&, Chain&)>& body) {
    return texts_of(1, [&](Communicator& world) {
      const auto model = one.make();
      FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
      body(fsdp, *model);
    })[0];
  };
  EXPECT_NE(texts_of(1,
                     [&](Communicator& world) {
                       const auto model = one.make();
                       FullyShardedDataParallel fsdp(*model, world, {{"part9"}});
                     })[0]
                .find("part9"),
            std::string::npos);
  const auto loss = [&](FullyShardedDataParallel& fsdp, Chain& model) {
    return fsdp.forward([&] { return one.loss(forward_units(model, one.x), one.y); });
  };
  EXPECT_NE(text_of([&](auto& fsdp, auto& model) {
              loss(fsdp, model).backward();
            }).find("not loss.backward()"),
            std::string::npos);
  EXPECT_NE(text_of([&](auto& fsdp, auto& model) {
              fsdp.backward(loss(fsdp, model), -3);
            }).find("rank 0 calls backward() with -3 samples"),
            std::string::npos);
  EXPECT_NE(text_of([&](auto& fsdp, auto& model) {
              fsdp.run(*model.parts[0]->children()[0], [] {});
            }).find("none of the units"),
            std::string::npos);
}

// A forward that throws leaves nothing behind: the next step works.
TEST_F(Fsdp, AFailureInForwardIsNotTheEnd) {
  const EqualityCase one = equality_cases(at::kDouble).at(0);
  with_threads(one_node(2), [&](Communicator& world) {
    const auto model = one.make();
    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
    const auto fail = [&] {
      fsdp.forward(
          [&] { run_unit(*model->parts[0], [&]() -> at::Tensor { throw Error("no data"); }); });
    };
    EXPECT_THROW(fail(), Error);
    const Batch mine = one.share(0, world.rank(), 2);
    EXPECT_EQ(sharded_step(fsdp, *model, one, mine, adam).samples, 24);
  });
}

TEST_F(Fsdp, OtherUnitsOnOneRankAreAnErrorThatNamesIt) {
  // Of the same size, so that their data could be taken for each other's.
  struct Pair : torch::nn::Module {
    Linear a{register_module("a", Linear(200, 200))};
    Linear b{register_module("b", Linear(200, 200))};
  };
  const auto texts = texts_of(2, [&](Communicator& world) {
    Pair model;
    FullyShardedOptions options = any_size();
    options.units = {"a", "b"};
    FullyShardedDataParallel fsdp(model, world, options);
    const at::Tensor x = at::ones({1, 200});
    Linear& mine = world.rank() == 0 ? model.a : model.b;
    fsdp.backward(
        fsdp.forward([&] { return run_unit(*mine, [&] { return mine->forward(x); }).sum(); }), 1);
  });
  for (const std::string& text : texts)
    EXPECT_NE(text.find("all_gather(count"), std::string::npos) << text;
}

// A rank that goes in the middle of backward; the others are out of it with an error that names it.
TEST_F(Fsdp, ALostRankIsNamed) {
  const EqualityCase one = equality_cases(at::kDouble).at(1);
  std::vector<std::string> texts(3);
  const auto store = make_in_process_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Options options = af::test::options_for(one_node(3), rank);
        options.store = store;
        Communicator world(options);
        const auto model = one.make();
        FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
        torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
        for (int64_t step = 0;; ++step) {
          const Batch mine = one.share(step, rank, 3);
          at::Tensor loss = fsdp.forward([&] {
            at::Tensor output = forward_units(*model, mine.x);
            if (rank == 1 && step == 2)
              output.register_hook([](const at::Tensor&) { throw Error("out of memory"); });
            return one.loss(output, mine.y);
          });
          fsdp.backward(loss, mine.rows());
          adam.step();
        }
      } catch (const CommunicatorError& error) {
        texts[static_cast<std::size_t>(rank)] =
            error.ranks() == std::vector<int>{1} ? "lost rank 1" : error.what();
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts, (std::vector<std::string>{"lost rank 1", "out of memory", "lost rank 1"}));
}

}  // namespace
}  // namespace af::train::test
