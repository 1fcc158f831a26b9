// SPDX-License-Identifier: Apache-2.0
// af::World with ranks that are threads of this process, on a fake agent.
#include "af/world.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/world/fake_agent.h"
#include "tests/unit/world/ranks.h"

namespace af::test {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

// Ranks of a test, joined at its end; what each of them gave or threw.
class Threads {
 public:
  Threads(
      FakeAgent& agent, int count,
      std::function<std::string(World&)> body = [](World& w) { return sum_until_told(w); })
      : results_(std::size_t(count)) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, &agent, i, body] {
        try {
          World world(elastic_options(agent.socket(i)));
          results_[std::size_t(i)] = body(world);
        } catch (const std::exception& error) {
          results_[std::size_t(i)] = std::string("exception: ") + error.what();
        }
      });
    }
  }
  ~Threads() { join(); }
  void join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  std::string result(int i) {
    threads_[std::size_t(i)].join();
    return results_[std::size_t(i)];
  }

 private:
  std::vector<std::string> results_;
  std::vector<std::thread> threads_;
};

const Json kSave = {{"event", "save"}, {"reason", "test"}, {"deadline", nullptr}};
const Json kChange = {{"event", "change"}, {"when", "step"}};

TEST(World, AFirstWorldComesFromTheAgent) {
  FakeAgent agent(2);
  Threads ranks(agent, 2, [](World& world) {
    const WorldView view = world.view();
    EXPECT_TRUE(world.elastic());
    EXPECT_EQ(view.generation, 4u);
    EXPECT_EQ(view.world_size, 2);
    EXPECT_EQ(view.members.size(), 2u);
    EXPECT_EQ(view.members[1].was, -1);
    EXPECT_EQ(view.environment.at("MASTER_ADDR"), "127.0.0.1");
    return sum_until_told(world) + " as rank " + std::to_string(view.rank);
  });
  EXPECT_EQ(agent.await(0, "hello")["client"], "test");
  // The second client is to be rank 0.
  agent.form(4, {1, 0}, {{"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(agent.await(0, "first_step"),
            (Json{{"op", "first_step"}, {"generation", 4}, {"step", 1}}));
  agent.say(1, kSave);  // one is told, both agree
  EXPECT_EQ(agent.await(0, "saved")["path"], "/checkpoint");
  EXPECT_EQ(ranks.result(0).substr(0, 11), "saved after");
  EXPECT_NE(ranks.result(1).find("as rank 0"), std::string::npos);
}

TEST(World, APlannedChange) {
  FakeAgent agent(3);
  Threads ranks(agent, 3);
  agent.form(0, {0, 1});
  agent.await(0, "first_step");
  agent.say(0, kChange);
  agent.form(1, {0, 1, 2});
  for (int i = 0; i < 3; ++i) agent.await(i, "first_step");
  agent.say(2, kSave);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ranks.result(i).substr(0, 5), "saved") << ranks.result(i);
}

}  // namespace
}  // namespace af::test
