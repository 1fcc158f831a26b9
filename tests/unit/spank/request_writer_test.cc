// SPDX-License-Identifier: Apache-2.0
#include "spank/request_writer.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "tests/unit/spank/fake_slurm_options.h"

namespace af::spank {
namespace {

using Persons = std::map<std::string, std::string, std::less<>>;
using Options = std::vector<SlurmOption>;
const std::vector<std::string> kNames = {"ntasks", "constraint", "partition", "mem-per-gpu"};

class RequestWriterTest : public testing::Test {
 protected:
  FakeSlurmOptions slurm;
  RequestWriter writer{slurm};
};

TEST_F(RequestWriterTest, WhatWeSetIsNotThePersons) {
  writer.write(Options{{"ntasks", "4"}, {"mem-per-gpu", "32768M"}});
  EXPECT_EQ(slurm.get("ntasks"), "4");
  EXPECT_EQ(writer.persons_options(kNames), Persons{});
}

TEST_F(RequestWriterTest, WhatThePersonSetAfterwardsIsThePersons) {
  writer.write(Options{{"ntasks", "4"}});
  slurm.values["ntasks"] = "7";
  EXPECT_EQ(writer.persons_options(kNames), (Persons{{"ntasks", "7"}}));
  writer.withdraw();
  EXPECT_EQ(slurm.get("ntasks"), "7");
}

TEST_F(RequestWriterTest, AReplacedValueIsRememberedAndGivenBack) {
  slurm.values["constraint"] = "fast";
  writer.write(Options{{"constraint", "fast&t4"}});
  EXPECT_EQ(writer.persons_options(kNames), (Persons{{"constraint", "fast"}}));
  writer.write(Options{{"constraint", "fast&a100"}});
  EXPECT_EQ(slurm.get("constraint"), "fast&a100");
  EXPECT_EQ(writer.persons_options(kNames), (Persons{{"constraint", "fast"}}));
  writer.withdraw();
  EXPECT_EQ(slurm.values, (std::map<std::string, std::string>{{"constraint", "fast"}}));
}

TEST_F(RequestWriterTest, WithdrawalLeavesAPlainRequest) {
  writer.write(Options{{"ntasks", "4"}, {"partition", "kept"}});
  writer.withdraw();
  EXPECT_TRUE(slurm.values.empty());
}

TEST_F(RequestWriterTest, TheSameRequestIsNotSetTwice) {
  writer.write(Options{{"ntasks", "4"}, {"mem-per-gpu", "32768M"}});
  const int sets = slurm.sets;
  writer.write(Options{{"ntasks", "4"}, {"mem-per-gpu", "32768M"}});
  EXPECT_EQ(slurm.sets, sets);
}

// Slurm 23.11 folds gpus-per-task into tres-per-task while it verifies the options.
TEST_F(RequestWriterTest, AValueThatSlurmMovedElsewhereIsStillOurs) {
  writer.write(Options{{"gpus-per-task", "t4:1"}});
  slurm.values["gpus-per-task"] = "";
  const int sets = slurm.sets;
  EXPECT_EQ(writer.persons_options(std::vector<std::string>{"gpus-per-task"}), Persons{});
  writer.write(Options{{"gpus-per-task", "t4:1"}});
  EXPECT_EQ(slurm.sets, sets);
}

TEST_F(RequestWriterTest, InAStepTheAllocationsVariablesAreNotThePersons) {
  slurm.values = {{"ntasks", "2"}, {"partition", "urgent"}};
  slurm.from_environment = {"ntasks"};
  EXPECT_EQ(writer.persons_options(kNames), (Persons{{"ntasks", "2"}, {"partition", "urgent"}}));
  writer.ignore_environment();
  EXPECT_EQ(writer.persons_options(kNames), (Persons{{"partition", "urgent"}}));
}

TEST_F(RequestWriterTest, AnOptionThatSlurmDoesNotKnowIsNamed) {
  slurm.unknown = {"gpus-per-task"};
  try {
    writer.write(Options{{"gpus-per-task", "1"}});
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--gpus-per-task=1"), std::string::npos);
  }
}

}  // namespace
}  // namespace af::spank
