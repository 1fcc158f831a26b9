// SPDX-License-Identifier: Apache-2.0
#include "collectives/environment.h"

#include <gtest/gtest.h>

#include <map>

namespace af {
namespace {

using Variables = std::map<std::string, std::string>;

Options from(const Variables& variables) {
  return options_from([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    from(variables);
    return "";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), CommunicatorError::Kind::invalid_argument);
    return error.what();
  }
}

TEST(Environment, AloneIsAWorldOfOne) {
  const Options options = from({});
  EXPECT_EQ(options.rank, 0);
  EXPECT_EQ(options.world_size, 1);
  EXPECT_EQ(options.store, nullptr);
  EXPECT_EQ(from({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"AF_SOCKET", "@x"}}).store, nullptr);
}

TEST(Environment, UnderAfLaunch) {
  const Options options = from({{"RANK", "3"},
                                {"WORLD_SIZE", "4"},
                                {"AF_SOCKET", "@af-x"},
                                {"AF_GENERATION", "12"},
                                {"AF_BACKEND", "local"},
                                {"MASTER_ADDR", "nowhere.invalid"},
                                {"AF_COLLECTIVE_TIMEOUT", "90"},
                                {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.world_size, 4);
  EXPECT_EQ(options.generation, 12u);
  EXPECT_EQ(options.backend, BackendKind::local);
  EXPECT_EQ(options.timeout, std::chrono::seconds(90));
  EXPECT_NE(options.store, nullptr);
}

TEST(Environment, BackendNames) {
  EXPECT_EQ(from({}).backend, BackendKind::automatic);
  EXPECT_EQ(from({{"AF_BACKEND", "auto"}}).backend, BackendKind::automatic);
  EXPECT_EQ(from({{"AF_BACKEND", "nccl"}}).backend, BackendKind::nccl);
  EXPECT_EQ(from({{"AF_BACKEND", "gloo"}}).backend, BackendKind::local);
}

TEST(Environment, WhatTheLauncherChoseForGpusLeavesHostMemoryAlone) {
  const Options options =
      from({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"AF_SOCKET", "@nobody"}, {"AF_BACKEND", "nccl"}});
  EXPECT_EQ(options.backend, BackendKind::automatic);
}

TEST(Environment, UnderMpirun) {
  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const Options options = from(mpi);
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world_size, 2);
  EXPECT_EQ(options.backend, BackendKind::mpi);
  EXPECT_EQ(options.store, nullptr);
  // The local backend in the same program, on one node.
  Variables local = mpi;
  local["AF_BACKEND"] = "local";
  local["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_NE(from(local).store, nullptr);
}

TEST(Environment, UnderTorchrun) {
  const Options options = from(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_NE(options.store, nullptr);
  EXPECT_EQ(options.backend, BackendKind::automatic);
}

TEST(Environment, RefusalsNameTheVariable) {
  const std::pair<Variables, const char*> cases[] = {
      {{{"RANK", "0"}}, "only one of RANK and WORLD_SIZE"},
      {{{"WORLD_SIZE", "2"}}, "only one of RANK and WORLD_SIZE"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK=x"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK=-1"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2: is not in a world of 2"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "start the program with af-launch"},
      {{{"AF_BACKEND", "gpu"}}, "AF_BACKEND=gpu"},
      {{{"AF_GENERATION", "1.5"}}, "AF_GENERATION=1.5"},
      {{{"AF_COLLECTIVE_TIMEOUT", "0"}}, "AF_COLLECTIVE_TIMEOUT=0"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"AF_SOCKET", "@x"}, {"AF_BACKEND", "mpi"}},
       "AF_BACKEND=mpi"},
  };
  for (const auto& [variables, wanted] : cases) {
    EXPECT_NE(refusal(variables).find(wanted), std::string::npos)
        << wanted << " / " << refusal(variables);
  }
}

}  // namespace
}  // namespace af
