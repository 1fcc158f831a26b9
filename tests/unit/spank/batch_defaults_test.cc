// SPDX-License-Identifier: Apache-2.0
#include "spank/batch_defaults.h"

#include <gtest/gtest.h>

#include "tests/unit/spank/fake_slurm_options.h"

namespace af::spank {
namespace {

std::string defaults(const std::map<std::string, std::string>& given) {
  FakeSlurmOptions slurm;
  slurm.values = given;
  std::string text;
  for (const SlurmOption& option : batch_defaults(slurm))
    text += option.name + "=" + option.value + " ";
  return text;
}

TEST(BatchDefaults, WhatThePersonHasNotChosen) {
  EXPECT_EQ(defaults({}), "requeue= open-mode=append ");
  EXPECT_EQ(defaults({{"no-requeue", ""}}), "open-mode=append ");
  EXPECT_EQ(defaults({{"requeue", ""}, {"open-mode", "truncate"}}), "");
  EXPECT_EQ(defaults({{"output", "/work/out-%j.txt"}, {"error", "/work/err-%A_%a.txt"}}),
            "requeue= open-mode=append ");
  EXPECT_EQ(defaults({{"output", "train.log"}}), "requeue= ");
  EXPECT_EQ(defaults({{"output", "out-%j"}, {"error", "train.err"}}), "requeue= ");
}

TEST(BatchDefaults, PatternsWithTheJobInThem) {
  for (const char* own : {"", "%j", "a-%J.out", "slurm-%A_%a.out", "%6j", "x%%%j", "%x-%j.log"})
    EXPECT_TRUE(names_one_job(own)) << own;
  for (const char* shared :
       {"train.log", "%x.out", "%a.out", "%%j", "50%", "%", "%6", "\\%j", "%u"})
    EXPECT_FALSE(names_one_job(shared)) << shared;
}

}  // namespace
}  // namespace af::spank
