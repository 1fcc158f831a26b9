// SPDX-License-Identifier: Apache-2.0
#include "af/train/profile.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "af/train/trace.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

using nlohmann::json;

TEST(ProfiledSteps, AreReadFromText) {
  using Ranges = std::vector<ProfiledSteps>;
  EXPECT_EQ(parse_profiled_steps("7"), (Ranges{{7, 7}}));
  EXPECT_EQ(parse_profiled_steps("10-12,500"), (Ranges{{10, 12}, {500, 500}}));
  for (const char* text :
       {"", "0", "-3", "3-", "5-4", "1-3,3", "7,6", "x", "1,", "1 2", "99999999999999999999"})
    EXPECT_THROW(parse_profiled_steps(text), Error) << text;
}

std::set<std::string> files_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  if (!std::filesystem::exists(directory)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.insert(entry.path().filename());
  return names;
}

// The names of spans in a file, with how often.
std::map<std::string, int> spans_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::map<std::string, int> names;
  const json trace = json::parse(stream);
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X") ++names[event["name"]];
  return names;
}

void train(Callbacks& callbacks, int64_t from, int64_t to) {
  for (int64_t step = from; step <= to; ++step) {
    { const TraceSpan span(TraceKind::compute, "forward"); }
    callbacks.step({step});
  }
}

TEST(Profile, WritesAFileForEachRangeAndRecordsNothingElse) {
  const TemporaryDirectory directory;
  Callbacks callbacks;
  callbacks.add(std::make_shared<Profile>(directory / "p", parse_profiled_steps("1,3-5,6,20-30")));
  callbacks.start({2, 4, 0});
  EXPECT_TRUE(tracing());
  train(callbacks, 1, 1);
  EXPECT_FALSE(tracing());
  train(callbacks, 2, 7);
  EXPECT_FALSE(tracing());
  EXPECT_EQ(files_in(directory / "p"),
            (std::set<std::string>{"steps-1-1-rank-2.json", "steps-3-5-rank-2.json",
                                   "steps-6-6-rank-2.json"}));
  EXPECT_EQ(
      spans_in(directory / "p" / "steps-3-5-rank-2.json"),
      (std::map<std::string, int>{{"forward", 3}, {"step 3", 1}, {"step 4", 1}, {"step 5", 1}}));
}

TEST(Profile, ATrainingThatGoesOnInTheMiddleOfARange) {
  const TemporaryDirectory directory;
  Callbacks callbacks;
  callbacks.add(std::make_shared<Profile>(directory.path(), parse_profiled_steps("3-6")));
  callbacks.start({0, 1, 4});
  train(callbacks, 5, 8);
  EXPECT_EQ(files_in(directory.path()), std::set<std::string>{"steps-5-6-rank-0.json"});
}

TEST(Profile, AnEarlyEndAndAnotherWorldWriteWhatThereIs) {
  const TemporaryDirectory directory;
  Callbacks callbacks;
  callbacks.add(std::make_shared<Profile>(directory.path(), parse_profiled_steps("1-100")));
  callbacks.start({1, 2, 0});
  train(callbacks, 1, 2);
  callbacks.world_change({0, 2, 1, 2});
  train(callbacks, 3, 5);
  callbacks.end({EndInfo::How::finished, 5});
  EXPECT_FALSE(tracing());
  EXPECT_EQ(files_in(directory.path()),
            (std::set<std::string>{"steps-1-2-rank-1.json", "steps-3-5-rank-0.json"}));
}

TEST(Profile, WhereItCannotWriteTheTrainingGoesOn) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "no directory";
  Callbacks callbacks;
  callbacks.add(std::make_shared<Profile>(directory / "file", parse_profiled_steps("1-2")));
  callbacks.start({0, 1, 0});
  testing::internal::CaptureStderr();
  train(callbacks, 1, 3);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("Profile: on_step: "), std::string::npos) << said;
  EXPECT_TRUE(callbacks.empty());
  EXPECT_FALSE(tracing());
}

}  // namespace
}  // namespace af::train
