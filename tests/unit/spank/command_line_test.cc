// SPDX-License-Identifier: Apache-2.0
#include "spank/command_line.h"

#include <gtest/gtest.h>

namespace af::spank {
namespace {

const OptionSyntax kSyntax = {"+n:p:vW::",
                              {{"ntasks", Argument::kRequired, 'n'},
                               {"partition", Argument::kRequired, 'p'},
                               {"verbose", Argument::kNone, 'v'},
                               {"mem", Argument::kRequired, 1000},
                               {"mem-per-gpu", Argument::kRequired, 1001},
                               {"af-max-workers", Argument::kRequired, 1002},
                               {"af-min-gpu-memory-gb", Argument::kRequired, 1003}}};

std::string shown(const CommandLine& line) {
  std::string text;
  for (const auto& [name, value] : line.options)
    text.append(name).append("=").append(value).append(" ");
  for (const std::string& unknown : line.unknown) text += "?" + unknown + " ";
  for (const std::string& operand : line.operands) text += "[" + operand + "]";
  return text;
}

struct Case {
  std::vector<std::string> words;
  std::string expected;
};

class CommandLineTest : public testing::TestWithParam<Case> {};

TEST_P(CommandLineTest, IsReadAsGetoptDoes) {
  EXPECT_EQ(shown(parse_command_line(GetParam().words, kSyntax)), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Table, CommandLineTest,
    testing::Values(
        Case{{}, ""}, Case{{"-n", "4", "run.sh", "-n", "5"}, "ntasks=4 [run.sh][-n][5]"},
        Case{{"-n4", "-vp", "kept", "run.sh"}, "ntasks=4 verbose= partition=kept [run.sh]"},
        Case{{"--ntasks", "4", "--partition=kept"}, "ntasks=4 partition=kept "},
        // An exact name is no abbreviation of a longer one.
        Case{{"--mem=10G", "a"}, "mem=10G [a]"}, Case{{"--af-max=3", "a"}, "af-max-workers=3 [a]"},
        Case{{"--af-m=3", "a"}, "?--af-m [a]"},  // ambiguous
        Case{{"--af-wokers=3", "a"}, "?--af-wokers [a]"},
        Case{{"-W", "a"}, "W= [a]"},      // an optional argument is never the next word
        Case{{"-W30", "a"}, "W=30 [a]"},  //
        Case{{"--", "-n", "4"}, "[-n][4]"},
        Case{{"-v", ":", "-n", "4"}, "verbose= "},  // the second component is another line
        Case{{"prog", ":", "-n", "4"}, "[prog]"}, Case{{"-", "x"}, "[-][x]"},
        Case{{"-n"}, "ntasks= "}));  // getopt complains; we only must not run over the end

TEST(LikelyOptionsTest, StopAtTheProgram) {
  const std::vector<std::string> words = {"-n", "4", "prog", "--af-theirs"};
  EXPECT_EQ(likely_options(words), std::vector<std::string>{"-n"});
  EXPECT_EQ(likely_operand(words), "prog");
}

TEST(LikelyOptionsTest, TakeAWordAfterAnOptionForItsValue) {
  const std::vector<std::string> words = {"--parsable", "--af-wokers=2", "run.sh", "x"};
  EXPECT_EQ(likely_options(words), (std::vector<std::string>{"--parsable", "--af-wokers"}));
  EXPECT_EQ(likely_operand(words), "run.sh");
}

TEST(OwnCommandLineTest, HasNoName) {
  for (const std::string& word : own_command_line()) EXPECT_EQ(word.find("tests/unit"), word.npos);
}

}  // namespace
}  // namespace af::spank
