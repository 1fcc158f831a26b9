// SPDX-License-Identifier: Apache-2.0
// What a communicator leaves behind, what outlives it, what a forked child may do, and groups.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/unit/collectives/world.h"

namespace af::test {
namespace {

using namespace std::chrono_literals;

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Lines of /proc/self/maps that show memory of ours.
std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:af-") != std::string::npos) ++count;
  }
  return count;
}

void use_once(const Nodes& nodes) {
  with_threads(nodes, [](Communicator& world) {
    Buffer buffer = world.allocate(1 << 20);
    world.all_reduce(buffer.data(), buffer.data(), 1 << 18, DataType::f32).synchronize();
    Buffer second = world.allocate(100);
    world.barrier().synchronize();
  });
}

TEST(Lifecycle, FiftyWorldsLeaveNothingBehind) {
  for (const Nodes& nodes : {one_node(3), separate_nodes(2), two_nodes(4)}) {
    use_once(nodes);  // what is made once and kept
    const std::size_t fds = entries("/proc/self/fd");
    const std::size_t threads = entries("/proc/self/task");
    for (int i = 0; i < 50; ++i) use_once(nodes);
    EXPECT_EQ(entries("/proc/self/fd"), fds);
    EXPECT_EQ(entries("/proc/self/task"), threads);
    EXPECT_EQ(shared_mappings(), 0u);
  }
}

TEST(Lifecycle, FailedWorldsLeaveNothingBehind) {
  auto fail = [] {
    with_threads(one_node(2), [](Communicator& world) {
      Buffer buffer = world.allocate(1 << 20);
      if (world.rank() == 1) return;
      EXPECT_THROW(
          world.all_reduce(buffer.data(), buffer.data(), 1 << 18, DataType::f32).synchronize(),
          CommunicatorError);
    });
  };
  fail();
  const std::size_t fds = entries("/proc/self/fd");
  const std::size_t threads = entries("/proc/self/task");
  for (int i = 0; i < 20; ++i) fail();
  EXPECT_EQ(entries("/proc/self/fd"), fds);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(shared_mappings(), 0u);
}

TEST(Lifecycle, BuffersAndWorksOutliveTheirCommunicator) {
  const auto store = make_in_process_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Buffer buffer;
      Work work;
      {
        Options options = options_for(one_node(2), rank);
        options.store = store;
        Communicator world(options);
        buffer = world.allocate(400'000);
        auto* x = static_cast<float*>(buffer.data());
        std::fill(x, x + 100'000, 1.0f);
        work = world.all_reduce(x, x, 100'000, DataType::f32);
        work.synchronize();
      }
      EXPECT_TRUE(work.done());
      EXPECT_NO_THROW(work.synchronize());
      EXPECT_EQ(static_cast<float*>(buffer.data())[99'999], 2.0f);
      // The next generation takes it as foreign memory.
      Options options = options_for(one_node(2), rank);
      options.store = store;
      options.generation = 8;
      Communicator next(options);
      Work again = next.all_reduce(buffer.data(), buffer.data(), 100'000, DataType::f32);
      again.synchronize();
      EXPECT_EQ(again.generation(), 8u);
      EXPECT_EQ(static_cast<float*>(buffer.data())[0], 4.0f);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Lifecycle, BuffersThatWereLetGoOfAreUnmapped) {
  with_threads(one_node(2), [](Communicator& world) {
    for (int i = 0; i < 30; ++i) {
      Buffer buffer = world.allocate(4096);
      EXPECT_EQ(static_cast<char*>(buffer.data())[17], 0);
      std::memset(buffer.data(), 1, 4096);
      world.barrier().synchronize();
    }
    world.barrier().synchronize();
    // Both ranks are in this process: segment twice, and two mappings per rank for a few buffers.
    EXPECT_LT(shared_mappings(), 16u);
    world.barrier().synchronize();
  });
}

TEST(Lifecycle, AnUnfinishedOperationEndsWithItsCommunicator) {
  with_threads(one_node(2), [](Communicator& world) {
    if (world.rank() == 1) return;
    std::vector<float> data(1'000'000);
    Work lost;
    {
      Communicator closing = std::move(world);
      lost = closing.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
    }
    EXPECT_TRUE(lost.done());
    EXPECT_THROW(lost.synchronize(), CommunicatorError);
  });
}

TEST(Lifecycle, TwoWorldsShareAStore) {
  with_threads(one_node(3), [](Communicator& world) {
    float x = 1;
    world.all_reduce(&x, &x, 1, DataType::f32).synchronize();
    EXPECT_EQ(x, 3);
  });
  const auto store = make_in_process_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Options options = options_for(one_node(2), rank);
      options.store = store;
      options.name = "first";
      Communicator first(options);
      options.name = "second";
      Communicator second(options);
      float a = 1, b = 10;
      Work wb = second.all_reduce(&b, &b, 1, DataType::f32);
      Work wa = first.all_reduce(&a, &a, 1, DataType::f32);
      wa.synchronize();
      wb.synchronize();
      EXPECT_EQ(a, 2);
      EXPECT_EQ(b, 20);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Lifecycle, AForkedChildHarmsNobodyAndKeepsNothingOpen) {
  Processes processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.start(options_for(separate_nodes(2), rank, 300s), [](const Options& options) {
      auto world = std::make_unique<Communicator>(options);
      if (options.rank == 1) {
        int said[2];
        if (pipe(said) != 0) return std::string("no pipe");
        const pid_t child = fork();
        if (child == 0) {
          world->abort("from a child");  // is the parent's to say: nothing happens
          try {
            (void)world->allocate(100);
            _exit(2);
          } catch (const CommunicatorError&) {
          }
          try {
            world->barrier();
          } catch (const CommunicatorError&) {
            world.reset();  // must neither hang nor close what the parent uses
            say("refused in " + std::to_string(getpid()));
            (void)!write(said[1], "x", 1);
            pause();  // outlives the rank, like a worker of a data loader
          }
          _exit(1);
        }
        char byte;
        if (read(said[0], &byte, 1) != 1) return std::string("the child says nothing");
      }
      world->barrier().synchronize();
      world->barrier().synchronize();
      return std::string("no error");
    });
  }
  processes.await_line(1);
  const std::string prefix = "refused in ";
  ASSERT_EQ(processes.text(1).substr(0, prefix.size()), prefix);
  const pid_t child = pid_t(std::stol(processes.text(1).substr(prefix.size())));
  EXPECT_EQ(processes.result(0), "no error");
  kill(child, SIGKILL);
  EXPECT_EQ(processes.result(1), "no error");
}

TEST(Groups, OneThreadDrivesAllRanks) {
  const auto store = make_in_process_store();
  std::vector<std::unique_ptr<Communicator>> ranks(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Options options = options_for(two_nodes(3), rank);
      options.store = store;
      ranks[std::size_t(rank)] = std::make_unique<Communicator>(options);
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<float> small = {1, 2, 3};
  std::vector<std::vector<double>> large(3, std::vector<double>(100'000, 1.0));
  std::vector<Work> works;
  group_begin();
  for (std::size_t r = 0; r < 3; ++r) {
    group_begin();  // nested: the outermost counts
    works.push_back(ranks[r]->all_reduce(&small[r], &small[r], 1, DataType::f32));
    works.push_back(ranks[r]->all_reduce(large[r].data(), large[r].data(), 100'000, DataType::f64));
    EXPECT_THROW(works.back().synchronize(), CommunicatorError);
    group_end();
  }
  EXPECT_FALSE(works.front().done());
  group_end();
  for (const Work& work : works) work.synchronize();
  EXPECT_EQ(small, (std::vector<float>{6, 6, 6}));
  for (const auto& one : large) EXPECT_EQ(one, std::vector<double>(100'000, 3.0));
  EXPECT_THROW(group_end(), CommunicatorError);
}

}  // namespace
}  // namespace af::test
