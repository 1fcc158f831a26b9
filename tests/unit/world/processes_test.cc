// SPDX-License-Identifier: Apache-2.0
// af::World with ranks that are processes: they are killed and stopped, and worlds come and go.
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "af/world.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/world/fake_agent.h"
#include "tests/unit/world/ranks.h"

namespace af::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

const Json kSave = {{"event", "save"}, {"reason", "test"}, {"deadline", nullptr}};
const Json kChange = {{"event", "change"}, {"when", "step"}};
const Json kLeave = {{"event", "leave"}, {"why", "test"}};

constexpr std::size_t kLarge = 4 << 20;  // elements: a sum of many chunks

// Starts ranks 0…count-1 that sum until they are told to end. `timeout` is that of operations: none
// of these tests may need it.
void start(Processes& processes, const FakeAgent& agent, int count, std::size_t elements = 64,
           const std::string& node_of_last = "") {
  for (int i = 0; i < count; ++i) {
    const std::string socket = agent.socket(i);
    const std::string node = i + 1 == count ? node_of_last : "";
    processes.start(Options{}, [=](const Options&) {
      WorldOptions options = elastic_options(socket, 10min);
      options.communicator.node_identity = node;
      World world(options);
      return sum_until_told(world, elements, [](World& w) {
        say("pid " + std::to_string(getpid()) + " in " + std::to_string(w.view().generation));
      });
    });
  }
}

pid_t pid_of(Processes& processes, int index) {
  processes.await_line(index);
  return std::stoi(processes.text(index).substr(4));
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void expect_saved(FakeAgent& agent, Processes& processes, const std::vector<int>& clients) {
  agent.say(clients.front(), kSave);
  for (int i : clients) {
    const std::string result = processes.result(i);
    EXPECT_EQ(result.substr(0, 11), "saved after") << result;
  }
}

class Loss : public testing::TestWithParam<const char*> {};

// Killed in mid-sum: what most of the time is spent in.
TEST_P(Loss, AKilledRankIsDoneWithout) {
  FakeAgent agent(4);
  Processes processes;
  start(processes, agent, 4, kLarge, GetParam());
  agent.form(0, {0, 1, 2, 3});
  for (int i = 0; i < 4; ++i) agent.await_first_step(i, 0);
  processes.signal(2, SIGKILL);
  EXPECT_EQ(processes.result(2), "killed by signal 9");
  const auto begin = Clock::now();
  agent.lose(0, {0, 1, 3}, "rank 2 was killed");
  agent.form(1, {0, 1, 3});
  for (int i : {0, 1, 3}) agent.await_first_step(i, 1);
  const double took = milliseconds_since(begin);
  RecordProperty("milliseconds", std::to_string(took));
  EXPECT_LT(took, 4000);
  expect_saved(agent, processes, {0, 1, 3});
}

// Nobody notices that by itself: all are blocked until the agent says `lost`.
TEST_P(Loss, AStoppedRankHoldsNobody) {
  FakeAgent agent(3);
  Processes processes;
  start(processes, agent, 3, kLarge, GetParam());
  agent.form(0, {0, 1, 2});
  for (int i = 0; i < 3; ++i) agent.await_first_step(i, 0);
  const pid_t stopped = pid_of(processes, 1);
  processes.signal(1, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(stopped, &status, WUNTRACED), stopped);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto begin = Clock::now();
  agent.lose(0, {0, 1, 2}, "rank 1 is stopped");
  agent.form(1, {0, 2});
  for (int i : {0, 2}) agent.await_first_step(i, 1);
  const double took = milliseconds_since(begin);
  RecordProperty("milliseconds", std::to_string(took));
  EXPECT_LT(took, 4000);
  // Continued, it finds its world lost, comes back and is taken in again.
  processes.signal(1, SIGCONT);
  EXPECT_EQ(agent.await(1, "arrive")["generation"], 0);
  agent.say(0, kChange);
  agent.await(0, "arrive");
  agent.await(2, "arrive");
  agent.send_world(2, {0, 2, 1});
  for (int i = 0; i < 3; ++i) agent.await_first_step(i, 2);
  expect_saved(agent, processes, {0, 1, 2});
}

INSTANTIATE_TEST_SUITE_P(Nodes, Loss, testing::Values("", "another"), [](const auto& one) {
  return std::string(*one.param == '\0' ? "OnOneNode" : "OnTwo");
});

TEST(Forming, AKilledRankWhileTheNextWorldIsFormed) {
  FakeAgent agent(3);
  Processes processes;
  start(processes, agent, 3);
  agent.form(0, {0, 1, 2});
  for (int i = 0; i < 3; ++i) agent.await_first_step(i, 0);
  agent.say(0, kChange);
  for (int i = 0; i < 3; ++i) agent.await(i, "arrive");
  processes.signal(2, SIGKILL);
  processes.result(2);
  agent.send_world(1, {0, 1, 2});  // the agent does not know yet
  agent.await_get("/1/rank/2");
  const auto begin = Clock::now();
  agent.lose(1, {0, 1}, "rank 2 was killed");
  agent.form(2, {0, 1});
  for (int i : {0, 1}) agent.await_first_step(i, 2);
  EXPECT_LT(milliseconds_since(begin), 4000);
  expect_saved(agent, processes, {0, 1});
}

// --- What stays behind in a process that goes through many worlds.

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * std::size_t(sysconf(_SC_PAGESIZE));
}

struct Holdings {
  std::size_t descriptors, threads, maps, heap, resident;
  static Holdings now() {
    return {entries("/proc/self/fd"), entries("/proc/self/task"), mappings(), mallinfo2().uordblks,
            resident_bytes()};
  }
};

std::string compare(const Holdings& before, const Holdings& after) {
  const auto grown = [](std::size_t from, std::size_t to) {
    return std::int64_t(to) - std::int64_t(from);
  };
  std::string text;
  if (after.descriptors != before.descriptors) text += " descriptors";
  if (after.threads != before.threads) text += " threads";
  if (grown(before.maps, after.maps) > 4) text += " mappings";
  if (grown(before.heap, after.heap) > 64 << 10) text += " heap";
  if (grown(before.resident, after.resident) > 4 << 20) text += " memory";
  return (text.empty() ? "nothing grew:" : "grew" + text + ":") + " descriptors " +
         std::to_string(before.descriptors) + "-" + std::to_string(after.descriptors) +
         ", threads " + std::to_string(before.threads) + "-" + std::to_string(after.threads) +
         ", mappings " + std::to_string(before.maps) + "-" + std::to_string(after.maps) +
         ", heap +" + std::to_string(grown(before.heap, after.heap)) + ", resident +" +
         std::to_string(grown(before.resident, after.resident));
}

TEST(Reforming, TwoHundredWorldsLeaveNothingBehind) {
  constexpr std::uint64_t kWarm = 20;
  constexpr std::uint64_t kLast = kWarm + 200;
  FakeAgent agent(4);
  Processes processes;
  for (int i = 0; i < 4; ++i) {
    const std::string socket = agent.socket(i);
    processes.start(Options{}, [socket](const Options&) {
      World world(elastic_options(socket, 10min));
      std::optional<Holdings> before;
      std::string result;
      Buffer kept;
      const std::string end = sum_until_told(world, 32 << 10, [&](World& w) {
        const std::uint64_t generation = w.view().generation;
        // Between two worlds: nothing is formed yet.
        if (generation >= kWarm && !before) before = Holdings::now();
        if (generation >= kLast && result.empty()) result = compare(*before, Holdings::now());
        kept = w.communicator().allocate(64 << 10);
      });
      return result + "; " + end.substr(0, 5);
    });
  }
  // Sizes 2, 3, 4, 3, 2, …; every second world ends by a loss, and each time others are left out.
  std::uint64_t generation = 0;
  std::vector<int> members;
  for (; generation < kLast; ++generation) {
    const int size = std::array<int, 4>{2, 3, 4, 3}[generation % 4];
    members.clear();
    for (int i = 0; i < size; ++i) members.push_back(int(generation + std::uint64_t(i)) % 4);
    agent.form(generation, members);
    agent.await_first_step(members.back(), generation);
    if (generation % 2 == 0) {
      agent.say(members.front(), kChange);
    } else {
      agent.lose(generation, members, "test");
    }
  }
  agent.form(generation, {0, 1, 2, 3});
  agent.say(0, kSave);
  for (int i = 0; i < 4; ++i) {
    const std::string result = processes.result(i);
    EXPECT_EQ(result.substr(0, 13), "nothing grew:") << result;
    EXPECT_EQ(result.substr(result.size() - 5), "saved") << result;
    RecordProperty("rank " + std::to_string(i), result);
  }
}

// Not asserted: how long it takes from `lost` to the first sum of the next world.
TEST(Reforming, HowLongItTakes) {
  for (const int size : {2, 3, 4}) {
    FakeAgent agent(size);
    Processes processes;
    start(processes, agent, size);
    std::vector<int> members(static_cast<std::size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    agent.form(0, members);
    std::vector<double> times;
    for (std::uint64_t generation = 0; generation < 21; ++generation) {
      for (int i : members) agent.await_first_step(i, generation);
      const auto begin = Clock::now();
      agent.lose(generation, members, "test");
      agent.form(generation + 1, members);
      for (int i : members) agent.await_first_step(i, generation + 1);
      times.push_back(milliseconds_since(begin));
      agent.say(0, kChange);
      ++generation;
      agent.form(generation + 1, members);
    }
    std::sort(times.begin(), times.end());
    RecordProperty("ranks_" + std::to_string(size) + "_median_ms",
                   std::to_string(times[times.size() / 2]));
    RecordProperty("ranks_" + std::to_string(size) + "_worst_ms", std::to_string(times.back()));
    printf("%d ranks: lost to first sum of the next world: median %.2f ms, worst %.2f ms\n", size,
           times[times.size() / 2], times.back());
    for (int i : members) agent.await_first_step(i, 22);
    expect_saved(agent, processes, members);
  }
}

}  // namespace
}  // namespace af::test
