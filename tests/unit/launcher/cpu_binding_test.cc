// SPDX-License-Identifier: Apache-2.0
#include "launcher/cpu_binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace af {
namespace {

using Cpus = std::vector<int>;
using Sets = std::vector<Cpus>;

Cpus range(int first, int last) {
  Cpus cpus(static_cast<size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}
Sets single(int count) {
  Sets cores;
  for (int cpu = 0; cpu < count; ++cpu) cores.push_back({cpu});
  return cores;
}

TEST(SplitCpus, InOrderWhenNothingIsKnown) {
  EXPECT_EQ(split_cpus({{range(0, 7), {}}, {range(0, 7), {}}}, 4, single(8)),
            Sets({range(0, 3), range(4, 7)}));
}

TEST(SplitCpus, NearTheGpuFirst) {
  const Cpus all = range(0, 7);
  EXPECT_EQ(split_cpus({{all, range(4, 7)}, {all, range(0, 3)}}, 2, single(8)),
            Sets({{4, 5}, {0, 1}}));
  // The one that does not care must not take what the other wants.
  EXPECT_EQ(split_cpus({{all, {}}, {all, range(0, 1)}}, 2, single(8)), Sets({{2, 3}, {0, 1}}));
  // Too few near: the rest from elsewhere.
  EXPECT_EQ(split_cpus({{all, {6, 7}}}, 4, single(8)), Sets({{0, 1, 6, 7}}));
}

TEST(SplitCpus, WholeCoresFirst) {
  const Sets cores = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(split_cpus({{range(0, 7), {}}, {range(0, 7), {}}}, 4, cores),
            Sets({{0, 1, 4, 5}, {2, 3, 6, 7}}));
  // CPU 4 is not ours: core 0 is only half ours and comes last.
  EXPECT_EQ(split_cpus({{{0, 1, 2, 3, 5, 6, 7}, {}}}, 2, cores), Sets({{1, 5}}));
}

TEST(SplitCpus, LeavesAloneWhatSlurmHasBound) {
  EXPECT_EQ(split_cpus({{range(0, 3), {}}, {range(4, 7), {}}}, 4, single(8)), Sets({{}, {}}));
  EXPECT_EQ(split_cpus({{range(0, 3), {}}}, 4, single(8)), Sets({{}}));
}

TEST(SplitCpus, DoesNotBindWhereTheMachineIsSmallerThanItSays) {
  // The sandbox: nodes of 64 CPUs on a machine of 2, 8 CPUs a rank.
  EXPECT_EQ(split_cpus({{range(0, 1), {}}, {range(0, 1), {}}}, 8, single(2)), Sets({{}, {}}));
  EXPECT_EQ(split_cpus({}, 8, single(2)), Sets());
  EXPECT_EQ(split_cpus({{range(0, 7), {}}}, 0, single(8)), Sets({{}}));
}

TEST(SplitCpus, MasksThatOverlapInPartGiveUpTogether) {
  EXPECT_EQ(split_cpus({{{0, 1}, {}}, {{1, 2, 3}, {}}, {{0}, {}}}, 1, single(4)),
            Sets({{}, {}, {}}));
}

TEST(ThreadsForRank, NeverMoreThanExist) {
  EXPECT_EQ(threads_for_rank(8, 64), 8);
  EXPECT_EQ(threads_for_rank(8, 2), 2);
  EXPECT_EQ(threads_for_rank(8, 0), 8);
  EXPECT_EQ(threads_for_rank(0, 4), 1);
}

TEST(CpuTopology, CoresCoverTheAllowedCpus) {
  const Sets cores = cpu_cores();
  for (const int cpu : allowed_cpus())
    EXPECT_TRUE(std::any_of(cores.begin(), cores.end(), [&](const Cpus& core) {
      return std::count(core.begin(), core.end(), cpu) == 1;
    })) << cpu;
  EXPECT_TRUE(cpus_near_pci_device("").empty());
  EXPECT_TRUE(cpus_near_pci_device("00000000:FE:1f.0").empty());
}

TEST(BindToCpus, BindsTheCallingThread) {
  const Cpus before = allowed_cpus();
  std::thread([&] {
    EXPECT_TRUE(bind_to_cpus({before.back()}));
    EXPECT_EQ(allowed_cpus(), Cpus({before.back()}));
    EXPECT_TRUE(bind_to_cpus({}));
    EXPECT_EQ(allowed_cpus(), Cpus({before.back()}));
    EXPECT_FALSE(bind_to_cpus({1 << 20}));
  }).join();
  EXPECT_EQ(allowed_cpus(), before);
}

}  // namespace
}  // namespace af
