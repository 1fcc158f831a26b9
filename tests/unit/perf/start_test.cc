// SPDX-License-Identifier: Apache-2.0
#include "perf/start.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <map>
#include <utility>

#include "perf/directory_store.h"

namespace af::perf {
namespace {

using Variables = std::map<std::string, std::string>;

Options settled(const Variables& variables, Options options = {}) {
  return with_slurm_step(std::move(options), [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(WithSlurmStep, TakesRankAndSizeOfAStep) {
  const Options options = settled({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}});
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.world_size, 4);
  EXPECT_EQ(options.backend, BackendKind::automatic);
}

TEST(WithSlurmStep, PmixMeansMpi) {
  const Variables step = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}, {"PMIX_RANK", "1"}};
  EXPECT_EQ(settled(step).backend, BackendKind::mpi);
  Options asked;
  asked.backend = BackendKind::local;
  EXPECT_EQ(settled(step, asked).backend, BackendKind::local);
}

TEST(WithSlurmStep, LeavesABatchScriptAndAKnownWorldAlone) {
  EXPECT_EQ(settled({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).world_size, 1);
  EXPECT_EQ(settled({{"SLURM_STEP_NUM_TASKS", "x"}, {"SLURM_PROCID", "0"}}).world_size, 1);
  Options known;
  known.rank = 1;
  known.world_size = 2;
  const Options kept = settled({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "7"}}, known);
  EXPECT_EQ(kept.rank, 1);
  EXPECT_EQ(kept.world_size, 2);
}

TEST(NeedsStore, OnlyForSeveralRanksWithoutMpi) {
  Options options;
  EXPECT_FALSE(needs_store(options));
  options.world_size = 2;
  EXPECT_TRUE(needs_store(options));
  options.backend = BackendKind::mpi;
  EXPECT_FALSE(needs_store(options));
  options.backend = BackendKind::local;
  options.store = make_in_process_store();
  EXPECT_FALSE(needs_store(options));
}

TEST(DirectoryStore, KeepsValuesUnderAnyKeyAndTimesOut) {
  const std::string directory =
      ::testing::TempDir() + "af-perf-store-" + std::to_string(::getpid());
  const auto store = make_directory_store(directory);
  store->set("world/0/rank 1", "a\nb");
  store->set("world_0/rank 1", "other");
  EXPECT_EQ(make_directory_store(directory)->get("world/0/rank 1", std::chrono::seconds(1)),
            "a\nb");
  store->set("world/0/rank 1", "again");
  EXPECT_EQ(store->get("world/0/rank 1", std::chrono::seconds(1)), "again");
  try {
    store->get("absent", std::chrono::milliseconds(5));
    FAIL() << "no timeout";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), CommunicatorError::Kind::timeout);
    EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos);
  }
  std::filesystem::remove_all(directory);
}

TEST(DirectoryStore, RefusesSomebodyElsesPlace) {
  const std::string link = ::testing::TempDir() + "af-perf-link-" + std::to_string(::getpid());
  std::filesystem::create_directory_symlink(::testing::TempDir(), link);
  EXPECT_THROW(make_directory_store(link), std::exception);
  std::filesystem::remove(link);
}

TEST(DirectoryOfSiblings, IsStable) {
  EXPECT_EQ(directory_of_siblings(), directory_of_siblings());
  EXPECT_NE(directory_of_siblings().find(std::to_string(::getppid())), std::string::npos);
}

}  // namespace
}  // namespace af::perf
