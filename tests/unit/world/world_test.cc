// SPDX-License-Identifier: Apache-2.0
// af::World with ranks that are threads of this process, on a fake agent.
#include "af/world.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "collectives/store/session_store.h"
#include "tests/unit/collectives/world.h"
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
      const std::function<std::string(World&)>& body = [](World& w) { return sum_until_told(w); }) {
    for (int i = 0; i < count; ++i) {
      results_.push_back(std::async(std::launch::async, [&agent, i, body]() -> std::string {
        try {
          World world(elastic_options(agent.socket(i)));
          return body(world);
        } catch (const CommunicatorError& error) {
          return error_text(error);
        } catch (const std::exception& error) {
          return std::string("exception: ") + error.what();
        }
      }));
    }
  }
  std::string result(int i) { return results_[std::size_t(i)].get(); }

 private:
  std::vector<std::future<std::string>> results_;
};

const Json kSave = {{"event", "save"}, {"reason", "time limit"}, {"deadline", 1e9}};
const Json kChange = {{"event", "change"}, {"when", "step"}};
const Json kLeave = {{"event", "leave"}, {"why", "enough"}};

void end_all(FakeAgent& agent, Threads& ranks, const std::vector<int>& clients) {
  agent.say(clients.front(), kSave);
  for (int i : clients) {
    const std::string result = ranks.result(i);
    EXPECT_EQ(result.substr(0, 11), "saved after") << result;
  }
}

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

TEST(World, APlannedChangeTakesANewRankIn) {
  FakeAgent agent(3);
  std::atomic<int> worlds{0};
  Threads ranks(agent, 3, [&](World& world) {
    return sum_until_told(world, 64, [&](World& w) {
      const WorldView view = w.view();
      if (view.generation != 1) return;
      ++worlds;
      EXPECT_EQ(view.members[0].was, 0);
      EXPECT_EQ(view.members[1].was, 1);
      EXPECT_EQ(view.members[2].was, -1);
      EXPECT_EQ(view.members[2].step, -1);
      // Agreed on: the old ranks stopped behind the same step.
      EXPECT_GT(view.members[0].step, 0);
      EXPECT_EQ(view.members[0].step, view.members[1].step);
      EXPECT_FALSE(w.should_change());
      EXPECT_FALSE(w.flags().change);
    });
  });
  agent.form(0, {0, 1});
  agent.await(0, "first_step");
  agent.say(0, kChange);
  agent.form(1, {0, 1, 2});
  for (int i = 0; i < 3; ++i) agent.await_first_step(i, 1);
  end_all(agent, ranks, {0, 1, 2});
  EXPECT_EQ(worlds, 3);
}

TEST(World, AChangeAtACheckpointWaitsForOne) {
  FakeAgent agent(2);
  Threads ranks(agent, 2, [](World& world) -> std::string {
    while (!world.flags(true).change) std::this_thread::yield();
    EXPECT_FALSE(world.flags().change);
    sum_once(world);
    EXPECT_FALSE(world.should_change());
    sum_once(world, 64, true);
    EXPECT_TRUE(world.should_change());
    return world.next(2, true) == World::Next::leave ? "left" : "formed";
  });
  agent.form(0, {0, 1});
  for (int i = 0; i < 2; ++i) agent.say(i, {{"event", "change"}, {"when", "checkpoint"}});
  for (int i = 0; i < 2; ++i) {
    const Json arrived = agent.await(i, "arrive");
    EXPECT_EQ(arrived["generation"], 0);
    EXPECT_EQ(arrived["step"], 2);
    EXPECT_EQ(arrived["in_step"], true);
    agent.say(i, kLeave);
    EXPECT_EQ(ranks.result(i), "left");
  }
}

TEST(World, ALostWorldFreesWhoIsBlockedInIt) {
  FakeAgent agent(3);
  std::promise<void> there;
  std::promise<void> over;
  Threads ranks(agent, 3, [&](World& world) {
    // The last rank takes part in nothing.
    if (world.view().generation == 0 && world.view().rank == 2) {
      (void)world.communicator();
      there.set_value();
      over.get_future().wait();
    }
    return sum_until_told(world);
  });
  agent.form(0, {0, 1, 2});
  there.get_future().wait();
  agent.lose(0, {0, 1, 2}, "rank 2 hangs");
  agent.form(1, {1, 0});  // without the one that hangs
  agent.await_first_step(0, 1);
  agent.await_first_step(1, 1);
  over.set_value();
  agent.form(2, {2});
  end_all(agent, ranks, {0, 1});
  end_all(agent, ranks, {2});
}

TEST(World, ALateWordAboutAnOldWorldIsIgnored) {
  FakeAgent agent(2);
  Threads ranks(agent, 2);
  agent.form(0, {0, 1});
  agent.await(0, "first_step");
  agent.say(1, kChange);
  agent.form(1, {0, 1});
  agent.await(1, "first_step");
  for (int i = 0; i < 2; ++i) {
    agent.say(i, {{"event", "lost"}, {"generation", 0}, {"why", "late"}});
    agent.say(i, {{"event", "lost"}, {"generation", 77}, {"why", "of no world"}});
  }
  end_all(agent, ranks, {0, 1});
  for (int i = 0; i < 2; ++i) {
    int arrivals = 0;
    for (const Json& line : agent.lines(i)) arrivals += line["op"] == "arrive" ? 1 : 0;
    EXPECT_EQ(arrivals, 2);
  }
}

TEST(World, ALostWorldThatIsJustBeingFormedEndsInTheStore) {
  FakeAgent agent(3);
  Threads ranks(agent, 2);  // the third never comes
  agent.await(0, "arrive");
  agent.await(1, "arrive");
  agent.send_world(0, {0, 1, 2});
  agent.await_get("/0/rank/2");
  for (int i = 0; i < 2; ++i) {
    agent.say(i, {{"event", "lost"}, {"generation", 0}, {"why", "one was killed"}});
  }
  agent.form(1, {0, 1});
  for (int i = 0; i < 2; ++i) agent.await_first_step(i, 1);
  end_all(agent, ranks, {0, 1});
}

// The same by the store alone: it answers before the event comes.
TEST(World, TheStoreMaySayFirstThatTheWorldHasEnded) {
  FakeAgent agent(2);
  Threads ranks(agent, 1);
  agent.await(0, "arrive");
  agent.send_world(0, {0, 1});
  agent.await_get("/0/rank/1");
  agent.lose(0, {}, "");
  EXPECT_EQ(agent.await(0, "arrive")["generation"], 0);
  agent.send_world(1, {0});
  end_all(agent, ranks, {0});
}

TEST(World, ALostWorldThatIsJustBeingFormedEndsInTheHandshake) {
  FakeAgent agent(2);
  Threads ranks(agent, 1);
  agent.await(0, "arrive");
  agent.send_world(0, {0, 1});
  // A rank that has said in the store where it is, and was killed then: nobody listens there.
  agent.await_get("/0/rank/1");
  const auto store = make_session_store(agent.socket(1));
  Json self = Json::parse(store->get("af/world/0/rank/0", 10s));
  self["node"] = "another";
  self["port"] = 1;
  self["unix"] = "af-nobody";
  store->set("af/world/0/rank/1", self.dump());
  while (agent.connections(0) < 2) std::this_thread::yield();
  agent.say(0, {{"event", "lost"}, {"generation", 0}, {"why", "one was killed"}});
  agent.form(1, {0});
  agent.await_first_step(0, 1);
  end_all(agent, ranks, {0});
}

TEST(World, ShrinksToOneAndGrows) {
  FakeAgent agent(3);
  Threads ranks(agent, 3);
  agent.form(0, {0, 1, 2});
  agent.await(0, "first_step");
  agent.say(0, kChange);
  agent.form(1, {0});
  agent.await(0, "first_step");
  agent.say(0, kChange);
  agent.form(2, {0, 2, 1});
  agent.await(1, "first_step");
  end_all(agent, ranks, {0, 1, 2});
}

TEST(World, LeavesWhenTold) {
  FakeAgent agent(2);
  Threads ranks(agent, 2);
  agent.form(0, {0, 1});
  agent.await(0, "first_step");
  agent.say(0, kChange);
  agent.await(1, "arrive");
  agent.say(1, kLeave);
  EXPECT_EQ(ranks.result(1).substr(0, 10), "left after");
  agent.form(1, {0});
  end_all(agent, ranks, {0});
}

TEST(World, MayNotBeNeededAfterAll) {
  FakeAgent agent(1);
  Threads ranks(agent, 1);
  agent.await(0, "arrive");
  agent.say(0, kLeave);
  EXPECT_EQ(ranks.result(0), "aborted []: this rank is not needed: enough");
}

TEST(World, SaveAndNotice) {
  FakeAgent agent(1);
  Threads ranks(agent, 1, [&](World& world) {
    EXPECT_FALSE(world.notice().has_value());
    world.send(R"({"op": "report"})");
    while (!world.notice()) std::this_thread::yield();
    EXPECT_EQ(world.notice()->reason, "preempted");
    EXPECT_EQ(world.notice()->deadline, 5.5);
    EXPECT_FALSE(world.notice()->whole_job);
    std::string result = sum_until_told(world);
    EXPECT_EQ(world.notice()->reason, "time limit");
    EXPECT_TRUE(world.notice()->whole_job);
    EXPECT_TRUE(world.should_save());
    EXPECT_FALSE(world.flags().save);
    world.finished();
    return result;
  });
  agent.form(0, {0});
  agent.await(0, "report");
  agent.say(0, {{"event", "notice"}, {"reason", "preempted"}, {"deadline", 5.5}, {"all", false}});
  agent.await(0, "first_step");
  end_all(agent, ranks, {0});
  EXPECT_EQ(agent.await(0, "saved")["path"], "/checkpoint");
  agent.await(0, "finished");
}

TEST(World, SaveOutlivesALostWorld) {
  FakeAgent agent(2);
  Threads ranks(agent, 2, [&](World& world) {
    while (!world.lost()) std::this_thread::yield();
    return sum_until_told(world);
  });
  agent.form(0, {0, 1});
  agent.say(0, kSave);
  agent.lose(0, {0, 1}, "a rank was killed");
  agent.form(1, {0, 1});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ranks.result(i), "saved after 1");
}

TEST(World, TheAgentMayGo) {
  FakeAgent agent(2);
  Threads ranks(agent, 2);
  agent.form(0, {0, 1});
  agent.await(1, "first_step");
  agent.close(1);
  EXPECT_EQ(ranks.result(1).substr(0, 8), "store []");
  // The other one learns of it as of any rank that leaves.
  agent.await(0, "arrive");
  agent.send_world(1, {0});
  end_all(agent, ranks, {0});
}

TEST(World, TheAgentMaySayNonsense) {
  FakeAgent agent(1);
  Threads ranks(agent, 1);
  agent.await(0, "arrive");
  agent.say_line(0, R"({"event": "world", "generation": 0})");
  const std::string result = ranks.result(0);
  EXPECT_EQ(result.substr(0, 8), "store []");
  EXPECT_NE(result.find("makes no sense"), std::string::npos) << result;
}

TEST(World, NobodyListens) {
  try {
    World world(elastic_options("@af-nobody-listens-here"));
    FAIL();
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), CommunicatorError::Kind::store);
  }
  WorldOptions options = elastic_options("");
  EXPECT_THROW((World(options)), CommunicatorError);
}

TEST(World, MessagesNeverBlock) {
  FakeAgent agent(1);
  Threads ranks(agent, 1, [&](World& world) -> std::string {
    EXPECT_THROW(world.send("no JSON"), CommunicatorError);
    EXPECT_THROW(world.send("{\n}"), CommunicatorError);
    agent.neglect(0, true);
    const std::string report =
        Json{{"op", "report"}, {"metrics", {{"text", std::string(1000, 'x')}}}}.dump();
    for (int i = 0; i < 20'000; ++i) world.send(report);  // 20 MB: most are dropped
    world.saved("/path", 7);                              // this one is not
    agent.neglect(0, false);
    return "said";
  });
  agent.form(0, {0});
  EXPECT_EQ(agent.await(0, "saved")["step"], 7);
  EXPECT_EQ(ranks.result(0), "said");
  std::size_t reports = 0;
  for (const Json& line : agent.lines(0)) {
    EXPECT_NE(line["op"], "broken");
    reports += line["op"] == "report" ? 1 : 0;
  }
  EXPECT_GT(reports, 100u);
  EXPECT_LT(reports, 20'000u);
}

TEST(World, BuffersAndWorksOfAnOldWorldStay) {
  FakeAgent agent(2);
  Threads ranks(agent, 2, [&](World& world) {
    const int rank = world.view().rank;
    Buffer kept = world.communicator().allocate(1 << 20);
    auto* values = static_cast<std::int32_t*>(kept.data());
    for (int i = 0; i < 1 << 18; ++i) values[i] = rank + i;
    Work blocked;
    std::vector<std::int32_t> other(1 << 18);
    if (rank == 0) {
      blocked =
          world.communicator().all_reduce(other.data(), other.data(), other.size(), DataType::i32);
    }
    world.step_done(1);
    while (!world.lost()) std::this_thread::yield();
    std::string result;
    EXPECT_EQ(int(world.next(1, true)), int(World::Next::formed));
    EXPECT_TRUE(blocked.done());
    EXPECT_EQ(blocked.generation(), 0u);
    if (rank == 0) {
      EXPECT_THROW(blocked.synchronize(), CommunicatorError);
    }
    // Nobody else can write to it any more.
    std::ifstream maps("/proc/self/maps");
    const auto begin = reinterpret_cast<std::uintptr_t>(kept.data());
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t from = 0;
      std::uintptr_t to = 0;
      EXPECT_EQ(sscanf(line.c_str(), "%lx-%lx", &from, &to), 2);
      if (from <= begin && begin < to) {
        EXPECT_EQ(line.find("memfd"), std::string::npos) << line;
      }
    }
    for (int i = 0; i < 1 << 18; ++i) {
      if (values[i] != rank + i) return "byte " + std::to_string(4 * i) + " has changed";
    }
    world.communicator().all_reduce(values, values, 1 << 18, DataType::i32).synchronize();
    for (int i = 0; i < 1 << 18; ++i) {
      if (values[i] != 1 + 2 * i) return "the sum at " + std::to_string(i) + " is wrong";
    }
    world.communicator().barrier().synchronize();
    return std::string("good");
  });
  agent.form(0, {0, 1});
  for (int i = 0; i < 2; ++i) agent.await(i, "first_step");
  agent.lose(0, {0, 1}, "test");
  agent.form(1, {0, 1});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ranks.result(i), "good");
}

TEST(World, TheBackendMayChange) {
  FakeAgent agent(1);
  Threads ranks(agent, 1);
  agent.await(0, "arrive");
  agent.send_world(0, {0}, {{"AF_BACKEND", "nccl"}});  // is for device memory
  agent.await(0, "first_step");
  agent.say(0, kChange);
  agent.form(1, {0}, {{"AF_BACKEND", "mpi"}});  // cannot be under af-launch
  const Json arrived = agent.await(0, "arrive");
  EXPECT_EQ(arrived["generation"], 1);
  agent.send_world(2, {0}, {{"AF_BACKEND", "local"}});
  end_all(agent, ranks, {0});
}

TEST(World, OfAFixedSizeWithAnAgent) {
  FakeAgent agent(2);
  auto rank = [&](int number) {
    WorldOptions options = elastic_options(agent.socket(number));
    options.elastic = false;
    options.communicator.rank = number;
    options.communicator.world_size = 2;
    World world(options);
    EXPECT_FALSE(world.elastic());
    EXPECT_EQ(world.view().world_size, 2);
    EXPECT_EQ(world.view().environment.at("RANK"), std::to_string(number));
    EXPECT_THROW((void)world.next(0, false), CommunicatorError);
    return sum_until_told(world);
  };
  auto first = std::async(std::launch::async, rank, 0);
  auto second = std::async(std::launch::async, rank, 1);
  agent.await(0, "hello");
  agent.await(1, "first_step");
  agent.say(1, kSave);
  EXPECT_EQ(first.get().substr(0, 5), "saved");
  EXPECT_EQ(second.get().substr(0, 5), "saved");
  for (const Json& line : agent.lines(0)) EXPECT_NE(line["op"], "arrive");
}

TEST(World, OfAFixedSizeWithoutAnAgent) {
  const auto store = make_in_process_store();
  auto rank = [&](int number) {
    WorldOptions options;
    options.communicator = options_for(one_node(2), number);
    options.communicator.store = store;
    World world(options);
    EXPECT_EQ(world.view().generation, 7u);
    sum_once(world);
    world.step_done(1);
    world.send(R"({"op": "report"})");
    world.finished();
    EXPECT_FALSE(world.lost());
    EXPECT_FALSE(world.notice().has_value());
    return world.communicator().world_size();
  };
  auto first = std::async(std::launch::async, rank, 0);
  EXPECT_EQ(rank(1), 2);
  EXPECT_EQ(first.get(), 2);
}

// What a child says of the world that it finds in these variables.
std::string in_environment(const std::map<std::string, std::string>& variables,
                           const std::function<std::string()>& body) {
  Processes process;
  process.start(Options{}, [&](const Options&) {
    for (const char* name : {"RANK", "WORLD_SIZE", "AF_SOCKET", "AF_ELASTIC", "MASTER_ADDR"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return body();
  });
  return process.result(0);
}

TEST(World, AloneWithoutAnything) {
  EXPECT_EQ(in_environment({},
                           [] {
                             World world = World::from_environment();
                             sum_once(world);
                             return "alone of " + std::to_string(world.view().world_size);
                           }),
            "alone of 1");
}

TEST(World, TheEnvironmentNamesTheAgent) {
  FakeAgent agent(1);
  auto result = std::async(std::launch::async, [&] {
    return in_environment({{"AF_SOCKET", agent.socket(0)}, {"AF_ELASTIC", "1"}}, [] {
      World world = World::from_environment();
      return sum_until_told(world);
    });
  });
  EXPECT_EQ(agent.await(0, "hello")["client"], "c++");
  agent.form(3, {0});
  agent.await(0, "first_step");
  agent.say(0, kSave);
  EXPECT_EQ(result.get().substr(0, 5), "saved");
}

TEST(World, AForkedChildIsSilent) {
  FakeAgent agent(1);
  Threads ranks(agent, 1, [](World& world) {
    sum_once(world);
    const pid_t child = fork();
    if (child == 0) {
      int wrong = 0;
      try {
        world.step_done(1000);
        world.finished();
        world.saved("/from a child", 1);
        world.send(R"({"op": "report"})");
        if (world.view().world_size != 1) wrong |= 1;
        if (world.flags().change || world.should_change() || world.lost()) wrong |= 2;
        try {
          (void)world.next(1, false);
          wrong |= 4;
        } catch (const CommunicatorError&) {
        }
        try {
          (void)world.communicator();
          wrong |= 8;
        } catch (const CommunicatorError&) {
        }
        { const World gone = std::move(world); }
      } catch (...) {
        wrong |= 16;
      }
      _exit(wrong);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return sum_until_told(world);
  });
  agent.form(0, {0});
  EXPECT_EQ(agent.await(0, "first_step")["step"], 1);
  end_all(agent, ranks, {0});
  agent.await(0, "saved");
  for (const Json& line : agent.lines(0)) {
    EXPECT_NE(line["op"], "report");
    EXPECT_NE(line["op"], "finished");
    EXPECT_NE(line["op"], "broken");
    if (line["op"] == "saved") {
      EXPECT_EQ(line["path"], "/checkpoint");
    }
  }
}

// A child that outlives its rank (a DataLoader worker) must not hide the rank's end from the agent.
TEST(World, AForkedChildHoldsNoConnection) {
  FakeAgent agent(1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    Threads ranks(agent, 1, [&](World& world) {
      const pid_t child = fork();
      if (child == 0) {
        close(ends[1]);
        char byte = 0;
        _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
      }
      (void)world;
      return std::to_string(child);
    });
    agent.form(0, {0});
    const pid_t child = std::stoi(ranks.result(0));
    while (agent.connections(0) != 0) std::this_thread::sleep_for(1ms);
    close(ends[1]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  close(ends[0]);
}

}  // namespace
}  // namespace af::test
