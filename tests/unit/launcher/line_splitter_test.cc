// SPDX-License-Identifier: Apache-2.0
#include "launcher/line_splitter.h"

#include <gtest/gtest.h>

namespace af {
namespace {

using Lines = std::vector<std::string>;

TEST(LineSplitter, GivesWholeLinesHoweverTheyArrive) {
  for (size_t piece = 1; piece < 12; ++piece) {
    LineSplitter splitter;
    const std::string text = "one\ntwo\r\n\nthree";
    Lines lines;
    for (size_t i = 0; i < text.size(); i += piece)
      for (auto& line : splitter.feed(std::string_view(text).substr(i, piece)))
        lines.push_back(line);
    EXPECT_EQ(lines, (Lines{"one\n", "two\r\n", "\n"})) << piece;
    EXPECT_EQ(splitter.rest(), "three");
    EXPECT_EQ(splitter.rest(), "");
  }
}

TEST(LineSplitter, ProgressBarsComeWithEachStep) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.feed("\r10%"), Lines{"\r"});
  EXPECT_EQ(splitter.feed("\r20%"), Lines{"10%\r"});
  EXPECT_EQ(splitter.feed("\n"), Lines{"20%\n"});
}

TEST(LineSplitter, ALineWithoutEndDoesNotFillTheMemory) {
  LineSplitter splitter;
  size_t given = 0;
  for (int i = 0; i < 100; ++i)
    for (const auto& piece : splitter.feed(std::string(10000, 'x'))) given += piece.size();
  EXPECT_GE(given, 100 * 10000 - LineSplitter::kLongest);
  EXPECT_EQ(given + splitter.rest().size(), 100u * 10000);
}

TEST(Tail, KeepsTheLastLinesShort) {
  Tail tail(2);
  for (const char* line : {"a\n", "\n", "b\r\n", "c\r"}) tail.add(line);
  tail.add(std::string(10000, 'y'));
  ASSERT_EQ(tail.lines().size(), 2u);
  EXPECT_EQ(tail.lines()[0], "c");
  EXPECT_LT(tail.lines()[1].size(), 500u);
}

}  // namespace
}  // namespace af
