// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_spool.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

MlflowItem metric(int64_t step, const std::string& key = "loss") {
  return {MlflowItem::Kind::metric, key, "", 0.5, 1, step};
}

std::vector<int64_t> steps_of(SpoolFile& spool, std::size_t most = 2000) {
  std::vector<int64_t> steps;
  for (const MlflowItem& item : spool.peek(most).items) steps.push_back(item.step);
  return steps;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.push_back(entry.path());
  return files;
}

TEST(MlflowSpool, GivesInOrderWhatIsNotSentYet) {
  const TemporaryDirectory directory;
  std::vector<SpoolFile> spools;
  spools.push_back(SpoolFile::create(directory / "new"));
  spools.push_back(SpoolFile::in_memory());
  for (SpoolFile& spool : spools) {
    EXPECT_TRUE(spool.empty());
    spool.append({metric(1), metric(2)});
    spool.append({metric(3)});
    EXPECT_EQ(steps_of(spool), (std::vector<int64_t>{1, 2, 3}));
    EXPECT_EQ(steps_of(spool, 2), (std::vector<int64_t>{1, 2}));
    spool.sent(spool.peek().ends[1]);
    EXPECT_EQ(steps_of(spool), std::vector<int64_t>{3});
    spool.sent(spool.peek().ends[0]);
    EXPECT_TRUE(spool.empty());
  }
  EXPECT_TRUE(spools[0].on_disk());
  EXPECT_FALSE(spools[1].on_disk());
  spools[0].remove();
  EXPECT_TRUE(files_in(directory / "new").empty());
}

TEST(MlflowSpool, AnotherTakesOverWhereTheProcessIsGone) {
  const TemporaryDirectory directory;
  {
    SpoolFile first = SpoolFile::create(directory.path());
    first.append({metric(1), metric(2), metric(3)});
    first.sent(first.peek().ends[0]);
    EXPECT_TRUE(SpoolFile::abandoned(directory.path()).empty()) << "it is held";
    EXPECT_EQ(files_in(directory.path()).size(), 2U);
  }
  const auto file = files_in(directory.path())[0].string();
  // As a kill leaves it: a line that is torn.
  std::ofstream(file.ends_with(".sent") ? file.substr(0, file.size() - 5) : file, std::ios::app)
      << R"({"metric":{"ke)";
  auto found = SpoolFile::abandoned(directory.path());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(SpoolFile::abandoned(directory.path()).empty()) << "held again";
  EXPECT_EQ(steps_of(found[0]), (std::vector<int64_t>{2, 3}));
  found[0].sent(found[0].peek().ends[1]);
  EXPECT_TRUE(found[0].empty());
  found[0].remove();
  EXPECT_TRUE(files_in(directory.path()).empty());
}

TEST(MlflowSpool, ALineThatIsNoneIsPassedOver) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "spool-h-1-0.jsonl") << "garbage\n\n"
                                                 << spool_line(metric(5)) << "more\n"
                                                 << spool_line(metric(6)) << "more\n";
  auto found = SpoolFile::abandoned(directory.path());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(steps_of(found[0]), (std::vector<int64_t>{5, 6}));
  found[0].sent(found[0].peek().ends[1]);
  EXPECT_TRUE(found[0].empty());
}

TEST(MlflowSpool, DoesNotGrowWhileItIsSent) {
  const TemporaryDirectory directory;
  SpoolFile spool = SpoolFile::create(directory.path());
  int64_t step = 0;
  for (int round = 0; round < 40; ++round) {  // 40 times 100 KB
    std::vector<MlflowItem> items;
    const std::string key(250, 'k');
    for (int i = 0; i < 300; ++i) {
      const MlflowItem item = metric(step++, key);
      items.push_back(item);
    }
    spool.append(items);
    const auto chunk = spool.peek();
    ASSERT_EQ(chunk.items.size(), 300U);
    ASSERT_EQ(chunk.items.back().step, step - 1);
    spool.sent(chunk.ends.back());
  }
  for (const auto& file : files_in(directory.path()))
    EXPECT_LT(std::filesystem::file_size(file), 2U << 20);
}

}  // namespace
}  // namespace af::train
