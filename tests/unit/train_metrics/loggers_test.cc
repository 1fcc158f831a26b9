// SPDX-License-Identifier: Apache-2.0
#include "af/train/loggers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/temporary_directory.h"
#include "train/metrics/csv_table.h"
#include "train/metrics/event_record.h"

namespace af::train {
namespace {

using nlohmann::json;

std::string content_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The parts of a table's rows behind the time.
std::vector<std::string> rows_of(const std::filesystem::path& path) {
  auto lines = lines_of(path);
  for (std::string& line : lines)
    if (!line.starts_with("time,")) line = line.substr(line.find(',') + 1);
  return lines;
}

void log(const std::shared_ptr<Callback>& logger, const std::vector<ReportInfo>& reports) {
  Callbacks callbacks;
  callbacks.add(logger);
  callbacks.start({0, 1, 0});
  for (const ReportInfo& report : reports) callbacks.report(report);
  callbacks.end({});
}

TEST(CsvTable, FieldsAndBack) {
  const struct {
    const char* text;
    const char* field;
  } cases[] = {{"loss", "loss"},
               {"", ""},
               {"a,b", "\"a,b\""},
               {"say \"x\"", "\"say \"\"x\"\"\""},
               {"two\nlines", "two lines"}};
  std::string line;
  std::vector<std::string> texts;
  for (const auto& one : cases) {
    EXPECT_EQ(csv_field(one.text), one.field);
    if (std::string(one.text).find('\n') != std::string::npos) continue;
    line += (texts.empty() ? "" : ",") + csv_field(one.text);
    texts.emplace_back(one.text);
  }
  EXPECT_EQ(csv_fields(line), texts);
  EXPECT_EQ(csv_line({1.5, 7, 2, {{"b", 0.1}, {"n", std::nan("")}}}, {"a", "b", "n"}),
            "1.500000,7,2,,0.1,nan\n");
}

TEST(CsvLogger, ColumnsGrowAndATrainingThatGoesOnAppends) {
  const TemporaryDirectory directory;
  const auto file = directory / "metrics.csv";
  log(csv_logger(file), {{1, 0, {{"loss", 0.5}}}, {2, 0, {{"loss", 0.25}, {"a,b", 1}}}});
  EXPECT_EQ(rows_of(file),
            (std::vector<std::string>{"time,step,epoch,loss,\"a,b\"", "1,0,0.5,", "2,0,0.25,1"}));
  std::ofstream(file, std::ios::app) << "17,3,0,0.1";  // what a killed writer leaves
  log(csv_logger(file), {{3, 1, {{"a,b", 2}, {"new", -1e-9}}}});
  EXPECT_EQ(rows_of(file), (std::vector<std::string>{"time,step,epoch,loss,\"a,b\",new",
                                                     "1,0,0.5,,", "2,0,0.25,1,", "3,1,,2,-1e-09"}));
}

TEST(CsvLogger, AFileOfAnotherKindIsLeftAlone) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "data.csv") << "x,y\n1,2\n";
  testing::internal::CaptureStderr();
  log(csv_logger(directory / "data.csv"), {});  // nothing reported: not even opened
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(content_of(directory / "data.csv"), "x,y\n1,2\n");
}

TEST(JsonLinesLogger, WritesALineForEachReport) {
  const TemporaryDirectory directory;
  const auto file = directory / "deep" / "metrics.jsonl";
  log(json_lines_logger(file), {{1, 0, {{"loss", 0.5}, {"bad", INFINITY}}}});
  std::ofstream(file, std::ios::app) << "{\"t\":";
  log(json_lines_logger(file), {{2, 1, {{"\xff", 1}}}});
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 2U);
  const json first = json::parse(lines[0]);
  EXPECT_EQ(first["metrics"], json::parse(R"({"loss":0.5,"bad":null})"));
  EXPECT_EQ(first["step"], 1);
  EXPECT_GT(first["t"].get<double>(), 1.7e9);
  EXPECT_EQ(json::parse(lines[1])["metrics"], json::parse("{\"\xef\xbf\xbd\":1.0}"));
}

TEST(TensorBoardLogger, EachProcessHasAFileOfWholeRecords) {
  const TemporaryDirectory directory;
  for (int64_t start = 0; start < 2; ++start)
    log(tensorboard_logger(directory / "runs"), {{start, 0, {{"loss", 0.5}}}});
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "runs")) {
    ++files;
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents."));
    const std::string bytes = content_of(entry.path());
    const std::size_t first = record_of(file_version_event(0)).size();
    EXPECT_EQ(bytes.size(), first + record_of(scalars_event(0, 1, {{"loss", 0.5}})).size());
    EXPECT_EQ(bytes.substr(23, 13), "brain.Event:2");
  }
  EXPECT_EQ(files, 2U);
}

TEST(Loggers, OnlyRank0WritesWhicheverItIs) {
  const TemporaryDirectory directory;
  const auto file = directory / "metrics.csv";
  Callbacks callbacks;
  callbacks.add(csv_logger(file));
  callbacks.start({1, 2, 0});
  callbacks.report({1, 0, {{"x", 1}}});
  callbacks.world_change({0, 2, 1, 1});
  callbacks.report({2, 0, {{"x", 2}}});
  callbacks.world_change({1, 1, 2, 2});
  callbacks.report({3, 0, {{"x", 3}}});
  callbacks.end({});
  EXPECT_EQ(rows_of(file), (std::vector<std::string>{"time,step,epoch,x", "2,0,2"}));
}

// As on a full disk: the file may not become longer. A record is whole or not there, and what could
// not be written is written when there is room again.
TEST(Loggers, AFullDiskLosesNothingThatComesInTime) {
  const TemporaryDirectory directory;
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  AppendFile file(directory / "records");
  file.append("whole|");
  rlimit full = before;
  full.rlim_cur = 10;
  ::setrlimit(RLIMIT_FSIZE, &full);
  EXPECT_THROW(file.append("another|"), std::runtime_error);
  EXPECT_EQ(content_of(directory / "records"), "whole|");
  ::setrlimit(RLIMIT_FSIZE, &before);
  file.append("another|");
  EXPECT_EQ(content_of(directory / "records"), "whole|another|");
}

}  // namespace
}  // namespace af::train
