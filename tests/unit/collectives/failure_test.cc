// SPDX-License-Identifier: Apache-2.0
// Ranks that die, hang, leave, abort or call something else: the others get an error that names
// them, in time, on shared memory and on TCP.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/collectives/world.h"

namespace af::test {
namespace {

using namespace std::chrono_literals;
using Kind = CommunicatorError::Kind;
using Clock = std::chrono::steady_clock;

struct Scene {
  const char* name;
  Nodes nodes;
  int victim;
  std::size_t count;  // f32
};

std::string text_of(const testing::TestParamInfo<Scene>& one) {
  return one.param.name;
}

// Large messages take long enough to be in the middle of one most of the time.
const Scene kScenes[] = {
    {"NodeSmall", one_node(3), 2, 100},
    {"NodeLarge", one_node(3), 1, 3'000'000},
    {"NodeFirstRank", one_node(4), 0, 1'000'000},
    {"TcpSmall", separate_nodes(3), 2, 100},
    {"TcpLarge", separate_nodes(3), 1, 3'000'000},
    {"WideLane", two_nodes(4), 0, 1'000'000},
    {"WideNotLane", {"a", "a", "b", "b", "b"}, 4, 1'000'000},
    {"WideAlone", two_nodes(4), 3, 100'000},
};

// All-reduces until something fails. Foreign memory, so that large ones go by chunks.
std::string reduce_for_ever(const Options& options, std::size_t count) {
  Communicator world(options);
  std::vector<float> data(count, 1.0f);
  for (int i = 0;; ++i) {
    if (i == 3) say("running");
    world.all_reduce(data.data(), data.data(), count, DataType::f32, ReduceOp::max).synchronize();
  }
}

// The error of the survivors, without the words that differ between them: "peer_lost [2]".
std::string kind_and_ranks(const std::string& text) {
  return text.substr(0, text.find(':'));
}

class Failures : public testing::TestWithParam<Scene> {
 protected:
  void start_all(Processes& processes, std::chrono::milliseconds timeout) {
    const Scene& scene = GetParam();
    for (int r = 0; r < int(scene.nodes.size()); ++r) {
      processes.start(options_for(scene.nodes, r, timeout), [&scene](const Options& options) {
        return reduce_for_ever(options, scene.count);
      });
    }
    for (int r = 0; r < int(scene.nodes.size()); ++r) processes.await_line(r);
  }
};

TEST_P(Failures, KilledRankIsNamedAtOnce) {
  const Scene& scene = GetParam();
  Processes processes;
  start_all(processes, 300s);
  processes.signal(scene.victim, SIGKILL);
  for (int r = 0; r < int(scene.nodes.size()); ++r) {
    const std::string said = processes.result(r);  // far sooner than the timeout of 300 s
    if (r == scene.victim) {
      EXPECT_EQ(said, "killed by signal 9");
    } else {
      EXPECT_EQ(kind_and_ranks(said), "peer_lost [" + std::to_string(scene.victim) + "]") << said;
    }
  }
}

TEST_P(Failures, StoppedRankIsNamedWithinTheTimeout) {
  const Scene& scene = GetParam();
  Processes processes;
  start_all(processes, 2s);
  processes.signal(scene.victim, SIGSTOP);
  for (int r = 0; r < int(scene.nodes.size()); ++r) {
    if (r == scene.victim) continue;
    const std::string said = processes.result(r, 20s);
    EXPECT_EQ(kind_and_ranks(said), "timeout [" + std::to_string(scene.victim) + "]") << said;
  }
  processes.signal(scene.victim, SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(Scenes, Failures, testing::ValuesIn(kScenes), text_of);

class Layouts : public testing::TestWithParam<Scene> {};

TEST_P(Layouts, AbortFreesThisRankAndTheOthers) {
  const Scene& scene = GetParam();
  std::atomic<int> blocked{0};
  const auto begin = Clock::now();
  with_threads(scene.nodes, [&](Communicator& world) {
    float x = 1;
    if (world.rank() == scene.victim) {
      // Never comes to the operation; aborts from here once the others are in it.
      while (blocked < world.world_size() - 1) std::this_thread::yield();
      world.abort("enough");
    } else {
      ++blocked;
      try {
        world.all_reduce(&x, &x, 1, DataType::f32).synchronize();
        ADD_FAILURE() << "the operation cannot have succeeded";
      } catch (const CommunicatorError& error) {
        EXPECT_EQ(error.kind(), Kind::aborted) << error.what();
        EXPECT_EQ(error.ranks(), std::vector<int>{scene.victim}) << error.what();
        EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
      }
    }
    EXPECT_THROW(world.barrier().synchronize(), CommunicatorError);
  });
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST_P(Layouts, AbortFromAnotherThreadFreesABlockedOperation) {
  const Scene& scene = GetParam();
  std::promise<void> freed;
  auto when_freed = freed.get_future().share();
  with_threads(scene.nodes, [&](Communicator& world) {
    if (world.rank() != scene.victim) {
      // Alone in no operation: leave only when the blocked rank is free.
      when_freed.wait();
      return;
    }
    std::atomic<bool> entered{false};
    std::thread breaker([&] {
      while (!entered) std::this_thread::yield();
      world.abort("from beside");
    });
    std::vector<float> data(scene.count);
    entered = true;
    EXPECT_THROW(
        world.all_reduce(data.data(), data.data(), data.size(), DataType::f32).synchronize(),
        CommunicatorError);
    breaker.join();
    freed.set_value();
  });
}

TEST_P(Layouts, DifferentCallsAreNamedOnBothSides) {
  const Scene& scene = GetParam();
  with_threads(scene.nodes, [&](Communicator& world) {
    std::vector<float> data(200);
    const bool odd = world.rank() == scene.victim;
    try {
      if (odd) {
        world.broadcast(data.data(), data.data(), 200, DataType::f32, scene.victim).synchronize();
      } else {
        world.all_reduce(data.data(), data.data(), 100, DataType::f32).synchronize();
      }
      ADD_FAILURE() << "no mismatch seen on rank " << world.rank();
    } catch (const CommunicatorError& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.kind(), Kind::mismatch) << what;
      EXPECT_NE(what.find("all_reduce(count 100, f32, sum)"), std::string::npos) << what;
      EXPECT_NE(what.find("broadcast(count 200, f32, root "), std::string::npos) << what;
    }
  });
}

TEST_P(Layouts, ARankThatLeftIsNamed) {
  const Scene& scene = GetParam();
  with_threads(scene.nodes, [&](Communicator& world) {
    float x = 1;
    world.all_reduce(&x, &x, 1, DataType::f32).synchronize();
    if (world.rank() == scene.victim) return;
    std::string first;
    try {
      world.all_reduce(&x, &x, 1, DataType::f32).synchronize();
      ADD_FAILURE() << "rank " << world.rank() << " did not notice";
    } catch (const CommunicatorError& error) {
      // Who is named first may itself leave because of the first: what counts is that it fails.
      EXPECT_EQ(error.kind(), Kind::peer_lost) << error.what();
      first = error.what();
    }
    try {
      world.barrier().synchronize();
      ADD_FAILURE() << "a broken communicator went on";
    } catch (const CommunicatorError& error) {
      EXPECT_EQ(first, error.what());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Scenes, Layouts,
                         testing::Values(Scene{"Node", one_node(3), 1, 1'000'000},
                                         Scene{"Tcp", separate_nodes(3), 1, 1'000'000},
                                         Scene{"Wide", two_nodes(4), 1, 1'000'000},
                                         Scene{"WideAlone", two_nodes(4), 3, 1'000'000}),
                         text_of);

TEST(Rendezvous, NamesAllRanksThatDidNotCome) {
  const auto store = make_in_process_store();
  Options options = options_for(one_node(4), 1, 300ms);
  options.store = store;
  std::thread other([&] {
    Options zero = options;
    zero.rank = 0;
    EXPECT_THROW(Communicator{zero}, CommunicatorError);
  });
  try {
    Communicator world(options);
    ADD_FAILURE() << "a world of four with two ranks";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), Kind::timeout);
    EXPECT_EQ(error.ranks(), (std::vector<int>{2, 3})) << error.what();
  }
  other.join();
}

TEST(Rendezvous, RanksThatDisagreeOnTheWorldSizeAreTold) {
  const auto store = make_in_process_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Options options = options_for(one_node(2 + rank), rank, 5s);
      options.store = store;
      try {
        Communicator world(options);
        ADD_FAILURE() << "a world of two and three";
      } catch (const CommunicatorError& error) {
        EXPECT_EQ(error.kind(), Kind::mismatch) << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Arguments, AreCheckedAndBreakNothing) {
  with_threads(one_node(2), [](Communicator& world) {
    std::vector<float> x(8, 1.0f);
    auto rejected = [&](auto call) {
      try {
        call();
        ADD_FAILURE() << "a wrong call was taken";
      } catch (const CommunicatorError& error) {
        EXPECT_EQ(error.kind(), Kind::invalid_argument) << error.what();
      }
    };
    const CallOptions half{.pre_scale = 0.5};
    rejected([&] { world.all_reduce(nullptr, x.data(), 4, DataType::f32); });
    rejected([&] { world.all_reduce(x.data(), x.data() + 1, 4, DataType::f32); });
    rejected([&] { world.all_reduce(x.data(), x.data(), 4, DataType(77)); });
    rejected([&] { world.all_reduce(x.data(), x.data(), 4, DataType::f32, ReduceOp(9)); });
    rejected([&] { world.all_reduce(x.data(), x.data(), 4, DataType::i32, ReduceOp::sum, half); });
    rejected([&] { world.all_reduce(x.data(), x.data(), ~std::size_t(0), DataType::f32); });
    rejected([&] { world.broadcast(x.data(), x.data(), 4, DataType::f32, 2); });
    rejected([&] { world.broadcast(x.data(), x.data(), 4, DataType::f32, -1); });
    rejected([&] { world.broadcast(x.data(), x.data(), 4, DataType::f32, 0, half); });
    world.all_reduce(x.data(), x.data(), 8, DataType::f32).synchronize();
    EXPECT_EQ(x, std::vector<float>(8, 2.0f));
  });
}

}  // namespace
}  // namespace af::test
