// SPDX-License-Identifier: Apache-2.0
// DataParallel in worlds that change, on a fake agent. Ranks are threads where the moment of a loss
// matters, and processes that are killed where it must not.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "af/train/data_parallel.h"
#include "common/error.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/world/fake_agent.h"
#include "train/parallel/gradient_reducer.h"

namespace af::train {
namespace {

using test::FakeAgent;
using Json = FakeAgent::Json;

constexpr int64_t kRows = 37;
constexpr int64_t kBatch = 8;

struct Left {};  // thrown where a rank's process would end with exit code 0
struct Died {};  // thrown where a rank's process would be killed

WorldOptions elastic_options(const std::string& socket) {
  WorldOptions options;
  options.socket = socket;
  options.elastic = true;
  options.client = "test";
  options.communicator.backend = BackendKind::local;
  options.communicator.address = "127.0.0.1";
  options.communicator.timeout = std::chrono::seconds(60);
  return options;
}

// A model whose weight of a row counts how often the row was learned, whatever the batches: the
// gradient of a row is 1 / samples, and the update makes 1 of it.
struct RowsImpl : torch::nn::Module {
  RowsImpl() { counts = register_parameter("counts", at::zeros({kRows}, at::kDouble)); }
  at::Tensor counts;
};
TORCH_MODULE(Rows);

// What a rank does, until all epochs are done, with what happens on the way.
struct Script {
  int64_t epochs = 3;
  std::filesystem::path checkpoints;
  // By client, in front of step(): the steps that are completed. May throw Died.
  std::function<void(int client, int64_t steps, const World& world)> before_step =
      [](int, int64_t, const World&) {};
  // Within a sum over the ranks at the end of an epoch, and behind its checkpoint.
  std::function<void(int client, int64_t epoch)> in_sum = [](int, int64_t) {};
  std::function<void(int client, int64_t epoch)> after_epoch = [](int, int64_t) {};
};

struct Outcome {
  std::string end;  // "done", "left", "died", or an error
  std::vector<double> counts;
  std::vector<int64_t> learned;  // samples of each step that this rank saw
  double sum = 0;                // of its own, kept: all samples of all steps
  int64_t steps = 0;
};

Outcome train_rows(int client, const WorldOptions& world_options, const Script& script) {
  Outcome outcome;
  Rows model;
  at::Tensor sum = at::zeros({1}, at::kDouble);
  int64_t epochs_done = 0;
  torch::optim::Adam adam(model->parameters());
  Dealer dealer(kRows, kBatch, 5);
  std::optional<BackgroundSaver> saver;
  try {
    World world(world_options);
    DataParallelOptions options;
    options.leave = [] { throw Left(); };
    DataParallel replicas(*model, world, options);
    replicas.keep("optimizer", adam);
    replicas.keep("data", dealer);
    replicas.keep("sum", sum);
    replicas.keep("epochs", epochs_done);
    if (!script.checkpoints.empty())
      replicas.save_with(saver.emplace(CheckpointDirectory(script.checkpoints)));
    replicas.resume();
    replicas.begin();
    for (int64_t epoch = dealer.epoch(); epoch < script.epochs; ++epoch) {
      while (const auto rows = replicas.next(epoch)) {
        replicas.zero_grad();
        at::Tensor loss;
        if (!rows->empty()) {
          loss = model->counts.index_select(0, at::tensor(*rows)).mean();
          loss.backward();
        }
        script.before_step(client, replicas.steps(), world);
        const auto step = replicas.step(
            static_cast<int64_t>(rows->size()), loss.defined() ? loss.item<double>() : 0, [&] {
              const at::NoGradGuard no_grad;
              const at::Tensor gradient = model->counts.grad();
              const double one = gradient.masked_select(gradient > 0).min().item<double>();
              model->counts.add_((gradient / one).round());
            });
        outcome.learned.push_back(step.samples);
        outcome.steps = replicas.steps();
        sum += static_cast<double>(step.samples);
      }
      const auto ranks = replicas.sum([&](int rank, int size) -> std::vector<double> {
        script.in_sum(client, epoch);
        return {1.0, static_cast<double>(rank), rank == 0 ? static_cast<double>(size) : 0.0};
      });
      if (ranks[0] != ranks[2] || ranks[1] != ranks[0] * (ranks[0] - 1) / 2)
        throw Error::format("the sum of 1 over {} ranks is {}", ranks[2], ranks[0]);
      replicas.check_agreement();
      if (++epochs_done != epoch + 1) throw Error::format("{} epochs after {}", epochs_done, epoch);
      replicas.checkpoint();
      script.after_epoch(client, epoch);
    }
    replicas.finish();
    outcome.end = "done";
  } catch (const Left&) {
    outcome.end = "left";
  } catch (const Died&) {
    outcome.end = "died";
  } catch (const std::exception& error) {
    outcome.end = error.what();
  }
  const at::Tensor counts = model->counts.detach().contiguous();
  outcome.counts.assign(counts.data_ptr<double>(), counts.data_ptr<double>() + kRows);
  outcome.sum = sum.item<double>();
  return outcome;
}

// Clients of an agent, each with a thread that trains.
class Ranks {
 public:
  Ranks(FakeAgent& agent, Script script) : agent_(agent), script_(std::move(script)) {}
  void start(int client) {
    results_[client] = std::async(std::launch::async, [this, client] {
      return train_rows(client, elastic_options(agent_.socket(client)), script_);
    });
  }
  void start(std::initializer_list<int> clients) {
    for (const int client : clients) start(client);
  }
  Outcome outcome(int client) { return results_.at(client).get(); }

  // Every row was learned once in each epoch, and a rank that was there all the time knows it.
  void expect_done(int client, bool from_the_start = true) {
    const Outcome one = outcome(client);
    EXPECT_EQ(one.end, "done") << "client " << client;
    EXPECT_EQ(one.counts, std::vector<double>(kRows, static_cast<double>(script_.epochs)));
    EXPECT_EQ(one.sum, static_cast<double>(kRows * script_.epochs));
    if (from_the_start) {
      EXPECT_EQ(std::accumulate(one.learned.begin(), one.learned.end(), int64_t{0}),
                kRows * script_.epochs);
    }
  }
  void expect_end(int client, const std::string& end) { EXPECT_EQ(outcome(client).end, end); }

 private:
  FakeAgent& agent_;
  Script script_;
  std::map<int, std::future<Outcome>> results_;
};

class ElasticTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
  void TearDown() override { GradientReducer::after_reduction = nullptr; }
  TemporaryDirectory temporary_;
};

TEST_F(ElasticTest, AWorldThatStaysTrainsEveryRow) {
  FakeAgent agent(3);
  Ranks ranks(agent, {});
  ranks.start({0, 1, 2});
  agent.form(0, {0, 1, 2});
  for (const int client : {0, 1, 2}) {
    agent.await(client, "finished");
    ranks.expect_done(client);
  }
}

// (who dies, in which step): steps 0 to 4 are the first epoch's.
class Dies : public ElasticTest, public testing::WithParamInterface<std::pair<int, int64_t>> {};

TEST_P(Dies, AndTheOthersDoItsRowsAtTheEnd) {
  const auto [victim, when] = GetParam();
  FakeAgent agent(3);
  Script script;
  script.before_step = [victim = victim, when = when](int client, int64_t steps, const World&) {
    if (client == victim && steps == when) throw Died();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2});
  agent.form(0, {0, 1, 2});
  std::vector<int> left;
  for (const int client : {0, 1, 2})
    if (client != victim) left.push_back(client);
  agent.form(1, left);
  for (const int client : left) {
    EXPECT_EQ(agent.await(client, "first_step")["generation"], 0) << "of the first world";
    EXPECT_EQ(agent.await(client, "first_step")["step"], when + 1);
    ranks.expect_done(client);
  }
  ranks.expect_end(victim, "died");
}

INSTANTIATE_TEST_SUITE_P(Elastic, Dies,
                         testing::Values(std::pair{2, 1}, std::pair{0, 1}, std::pair{1, 3},
                                         std::pair{2, 4}, std::pair{1, 5}, std::pair{0, 14}));

TEST_F(ElasticTest, AllButOneDieInOneStepAndInTheNextWorldToo) {
  FakeAgent agent(5);
  Script script;
  script.before_step = [](int client, int64_t steps, const World&) {
    if (steps == 2 && (client == 1 || client == 4)) throw Died();
    if (steps == 3 && (client == 0 || client == 3)) throw Died();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2, 3, 4});
  agent.form(0, {0, 1, 2, 3, 4});
  agent.form(1, {2, 0, 3});
  agent.form(2, {2});
  ranks.expect_done(2);
  for (const int client : {0, 1, 3, 4}) ranks.expect_end(client, "died");
}

// Throws on this thread, as if the `when`th reduction had not come to an end here.
void fail_after_reduction(int when, const std::function<void()>& fail) {
  GradientReducer::after_reduction = [when, fail, count = 0]() mutable {
    if (count++ == when) fail();
  };
}

[[noreturn]] void not_here() {
  throw CommunicatorError(CommunicatorError::Kind::aborted, "the result has not come");
}

TEST_F(ElasticTest, ARankWithoutTheResultGetsTheStateFromOneThatHasIt) {
  // In mid-epoch, and at the end of one.
  for (const int when : {2, 4}) {
    FakeAgent agent(3);
    Script script;
    std::atomic<bool> set{false};
    script.before_step = [&](int client, int64_t, const World&) {
      if (client == 1 && !set.exchange(true)) fail_after_reduction(when, not_here);
    };
    Ranks ranks(agent, script);
    ranks.start({0, 1, 2});
    agent.form(0, {0, 1, 2});
    for (const int client : {0, 1, 2}) {
      const Json arrived = agent.await(client, "arrive");
      EXPECT_EQ(arrived["step"], client == 1 ? when : when + 1);
    }
    agent.send_world(1, {0, 1, 2});
    for (const int client : {0, 1, 2}) ranks.expect_done(client);
  }
}

TEST_F(ElasticTest, OneIsBehindAnotherOneDiesAndOneComes) {
  FakeAgent agent(4);
  Script script;
  std::atomic<bool> set{false};
  script.before_step = [&](int client, int64_t steps, const World&) {
    if (client == 1 && !set.exchange(true)) fail_after_reduction(2, not_here);
    if (client == 2 && steps == 3) throw Died();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2, 3});
  agent.form(0, {0, 1, 2});
  agent.form(1, {1, 0, 3});
  ranks.expect_done(0);
  ranks.expect_done(1);
  ranks.expect_done(3, false);
  ranks.expect_end(2, "died");
}

TEST_F(ElasticTest, AResultThatIsLostWithThoseThatHadItIsMadeAgain) {
  FakeAgent agent(3);
  Script script;
  script.before_step = [&](int client, int64_t steps, const World&) {
    if (steps == 0 && client == 1) fail_after_reduction(2, not_here);
    if (steps == 0 && client != 1) fail_after_reduction(2, [] { throw Died(); });
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2});
  agent.form(0, {0, 1, 2});
  agent.form(1, {1});
  ranks.expect_done(1);
  ranks.expect_end(0, "died");
  ranks.expect_end(2, "died");
}

TEST_F(ElasticTest, ARankLeavesBehindAStepAndNothingIsLost) {
  FakeAgent agent(3);
  Script script;
  script.before_step = [&](int client, int64_t steps, const World& world) {
    if (client != 1 || steps != 2) return;
    agent.say(1, {{"event", "change"}, {"when", "step"}});
    while (!world.flags().change) std::this_thread::yield();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2});
  agent.form(0, {0, 1, 2});
  for (const int client : {0, 1, 2}) {
    const Json arrived = agent.await(client, "arrive");
    EXPECT_EQ(arrived["in_step"], false);
    EXPECT_EQ(arrived["step"], 3);
  }
  agent.say(2, {{"event", "leave"}, {"why", "its GPU is taken back"}});
  agent.send_world(1, {0, 1});
  ranks.expect_end(2, "left");
  for (const int client : {0, 1}) {
    const Outcome one = ranks.outcome(client);
    EXPECT_EQ(one.end, "done");
    EXPECT_EQ(one.learned, (std::vector<int64_t>{8, 8, 8, 8, 5, 8, 8, 8, 8, 5, 8, 8, 8, 8, 5}));
  }
}

TEST_F(ElasticTest, ARankComesBehindACheckpointAndHasEverything) {
  FakeAgent agent(3);
  Script script;
  script.checkpoints = temporary_ / "checkpoints";
  script.before_step = [&](int client, int64_t steps, const World& world) {
    if (client != 0 || steps != 1) return;
    agent.say(0, {{"event", "change"}, {"when", "checkpoint"}});
    while (!world.flags(true).change) std::this_thread::yield();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1});
  agent.form(0, {0, 1});
  for (const int client : {0, 1}) EXPECT_EQ(agent.await(client, "arrive")["step"], 5);
  ranks.start(2);
  agent.await(2, "arrive");
  agent.send_world(1, {0, 1, 2});
  ranks.expect_done(0);
  ranks.expect_done(1);
  const Outcome one = ranks.outcome(2);
  EXPECT_EQ(one.end, "done");
  EXPECT_EQ(one.learned.size(), 10U);
  EXPECT_EQ(one.counts, std::vector<double>(kRows, 3));
  EXPECT_EQ(one.sum, 3.0 * kRows);
}

// A rank is lost in a sum over the ranks at the end of an epoch, and another comes in its place.
TEST_F(ElasticTest, ASumIsMadeAgainWithWhoIsThere) {
  FakeAgent agent(4);
  Script script;
  script.in_sum = [](int client, int64_t epoch) {
    if (client == 1 && epoch == 1) throw Died();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2, 3});
  agent.form(0, {0, 1, 2});
  agent.form(1, {0, 3, 2});
  ranks.expect_done(0);
  ranks.expect_done(2);
  ranks.expect_done(3, false);
  ranks.expect_end(1, "died");
}

TEST_F(ElasticTest, AWorldThatIsLostWhileItIsFormedIsFollowedByAnother) {
  FakeAgent agent(3);
  Script script;
  script.before_step = [](int client, int64_t steps, const World&) {
    if (client == 2 && steps == 2) throw Died();
  };
  Ranks ranks(agent, script);
  ranks.start({0, 1, 2});
  agent.form(0, {0, 1, 2});
  for (const int client : {0, 1}) agent.await(client, "arrive");
  agent.send_world(1, {0, 1, 2});  // with one that is no more
  agent.lose(1, {0, 1}, "rank 2 has not come");
  agent.form(2, {0, 1});
  ranks.expect_done(0);
  ranks.expect_done(1);
}

TEST_F(ElasticTest, WhenTheJobEndsTheStateIsSavedAndTheNextGoesOnFromTheStep) {
  for (const bool elastic : {true, false}) {
    const auto checkpoints = temporary_ / (elastic ? "elastic" : "fixed");
    constexpr int64_t saved = 8;
    {
      FakeAgent agent(3);
      Script script;
      script.checkpoints = checkpoints;
      script.before_step = [&](int client, int64_t steps, const World& world) {
        if (client != 2 || steps != 7) return;
        agent.say(2, {{"event", "save"}, {"reason", "time limit"}, {"deadline", nullptr}});
        while (!world.flags().save) std::this_thread::yield();
      };
      std::vector<std::future<Outcome>> outcomes;
      for (int client = 0; client < 3; ++client) {
        WorldOptions options = elastic_options(agent.socket(client));
        options.elastic = elastic;
        options.communicator.rank = client;
        options.communicator.world_size = 3;
        outcomes.push_back(std::async(std::launch::async, train_rows, client, options, script));
      }
      if (elastic) agent.form(0, {0, 1, 2});
      for (int client = 0; client < 3; ++client) {
        const Json line = agent.await(client, "saved");
        EXPECT_EQ(line["step"], 8);
        const Checkpoint checkpoint{line["path"].get<std::string>(), saved};
        EXPECT_FALSE(fault_of_checkpoint(checkpoint));
        EXPECT_EQ(outcomes[static_cast<size_t>(client)].get().end, "left");
      }
    }
    FakeAgent agent(2);
    Script script;
    script.checkpoints = checkpoints;
    Ranks ranks(agent, script);
    ranks.start({0, 1});
    agent.form(0, {0, 1});
    for (const int client : {0, 1}) {
      const Outcome one = ranks.outcome(client);
      EXPECT_EQ(one.end, "done");
      EXPECT_EQ(one.steps, 15);
      EXPECT_EQ(static_cast<int64_t>(one.learned.size()), 15 - saved);
      EXPECT_EQ(one.counts, std::vector<double>(kRows, 3));
      EXPECT_EQ(one.sum, 3.0 * kRows);
    }
  }
}

TEST_F(ElasticTest, AStateThatTheProgramKeepsIsChecked) {
  Rows model;
  WorldOptions options;
  World world(options);
  DataParallel replicas(*model, world);
  Dealer dealer(kRows, kBatch, 1);
  Dealer second(kRows, kBatch, 1);
  replicas.keep("data", dealer);
  EXPECT_THROW(replicas.keep("more", second), Error);
  EXPECT_THROW(replicas.next(0), Error) << "before begin()";
  State state = replicas.state();
  EXPECT_EQ(state.erase("data"), 1U);
  EXPECT_THROW(replicas.load(state), Error);
  state.insert("data", int64_t{1});
  EXPECT_THROW(replicas.load(state), Error);
  replicas.begin();
  EXPECT_TRUE(replicas.next(0));
}

// A training with a minimum that it comes to: least squares.
double final_loss(int client, const WorldOptions& world_options, int64_t dies_at) {
  const at::Tensor x = (at::arange(200 * 6, at::kDouble) * 0.7).sin().view({200, 6});
  const at::Tensor y = (at::arange(200 * 4, at::kDouble) * 0.3).cos().view({200, 4});
  torch::nn::Sequential model(torch::nn::Linear(6, 4));
  model->to(at::kDouble);
  torch::optim::Adam adam(model->parameters());
  Dealer dealer(200, 16, 1);
  World world(world_options);
  DataParallel replicas(*model, world);
  replicas.keep("optimizer", adam);
  replicas.keep("data", dealer);
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(0.1);
  }
  replicas.begin();
  constexpr int64_t kEpochs = 30;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options())
        .lr(0.05 * static_cast<double>(kEpochs - epoch) / kEpochs);
    while (const auto rows = replicas.next(epoch)) {
      replicas.zero_grad();
      at::Tensor loss;
      if (!rows->empty()) {
        const at::Tensor index = at::tensor(*rows);
        loss = (model->forward(x.index_select(0, index)) - y.index_select(0, index)).pow(2).mean();
        loss.backward();
      }
      if (client == 1 && replicas.steps() == dies_at) throw Died();
      replicas.step(static_cast<int64_t>(rows->size()), loss, adam);
    }
    replicas.check_agreement();
  }
  const auto sums = replicas.sum([&](int rank, int size) -> std::vector<double> {
    const Share share = contiguous_share(200, rank, size);
    const auto error =
        model->forward(x.slice(0, share.first, share.last)) - y.slice(0, share.first, share.last);
    return {error.pow(2).sum().item<double>()};
  });
  replicas.finish();
  return sums[0] / 800;
}

TEST_F(ElasticTest, TheLossIsThatOfAQuietTraining) {
  const auto run = [](int64_t dies_at) {
    FakeAgent agent(3);
    std::vector<std::future<double>> losses;
    for (int client = 0; client < 3; ++client)
      losses.push_back(std::async(std::launch::async, final_loss, client,
                                  elastic_options(agent.socket(client)), dies_at));
    agent.form(0, {0, 1, 2});
    if (dies_at >= 0) {
      EXPECT_THROW(losses[1].get(), Died);
      agent.form(1, {0, 2});
    } else {
      losses[1].get();
    }
    const double loss = losses[0].get();
    EXPECT_EQ(losses[2].get(), loss);
    return loss;
  };
  const double quiet = run(-1);
  EXPECT_GT(quiet, 0.01);
  for (const int64_t dies_at : {4, 200}) EXPECT_NEAR(run(dies_at), quiet, 1e-3 * quiet) << dies_at;
}

// Ranks are processes, and one after the other is killed at a random moment and replaced. Then the
// job ends, and every row has been learned as often as any other, but for those of one epoch.
TEST_F(ElasticTest, KilledAtAnyMoment) {
  constexpr int kKills = 12;
  constexpr int kRanks = 3;
  FakeAgent agent(kRanks + kKills);
  test::Processes processes;
  const auto start = [&](int client) {
    const std::string socket = agent.socket(client);
    const auto checkpoints = temporary_ / "checkpoints";
    processes.start(Options{}, [=](const Options&) {
      at::set_num_threads(1);
      Script script;
      script.epochs = 1'000'000;
      script.checkpoints = checkpoints;
      const Outcome one = train_rows(client, elastic_options(socket), script);
      if (one.end != "left") return one.end;
      const auto [least, most] = std::minmax_element(one.counts.begin(), one.counts.end());
      const double all = std::accumulate(one.counts.begin(), one.counts.end(), 0.0);
      if (*most > *least + 1 || all != one.sum)
        return fmt::format("rows were learned {} to {} times, {} in all, of {} samples", *least,
                           *most, all, one.sum);
      return one.end + fmt::format(" {}", all);
    });
  };
  std::mt19937_64 random(3);
  std::vector<int> world;
  for (int client = 0; client < kRanks; ++client) {
    start(client);
    world.push_back(client);
  }
  agent.form(0, world);
  for (int kill = 0; kill < kKills; ++kill) {
    const auto generation = static_cast<uint64_t>(2 * kill);
    for (const int client : world) agent.await_first_step(client, generation);
    const int next = kRanks + kill;
    start(next);
    agent.await(next, "arrive");
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, 3000)(random)));
    const size_t victim = std::uniform_int_distribution<size_t>(0, world.size() - 1)(random);
    processes.signal(world[victim], SIGKILL);
    EXPECT_EQ(processes.result(world[victim]), "killed by signal 9");
    world.erase(world.begin() + static_cast<std::ptrdiff_t>(victim));
    agent.lose(generation, world, "killed");
    for (const int client : world) agent.await(client, "arrive");
    agent.send_world(generation + 1, world);
    for (const int client : world) agent.await_first_step(client, generation + 1);
    // As a coordinator does it: the new one comes in behind a checkpoint, and not at a loss.
    for (const int client : world) agent.say(client, {{"event", "change"}, {"when", "checkpoint"}});
    for (const int client : world) agent.await(client, "arrive");
    world.push_back(next);
    agent.send_world(generation + 2, world);
  }
  for (const int client : world) agent.await_first_step(client, 2 * kKills);
  agent.say(world[0], {{"event", "save"}, {"reason", "time limit"}, {"deadline", nullptr}});
  std::string first;
  for (const int client : world) {
    const std::string result = processes.result(client);
    if (first.empty()) first = result;
    EXPECT_EQ(result.rfind("left ", 0), 0U) << result;
    EXPECT_EQ(result, first);
  }
}

}  // namespace
}  // namespace af::train
