// SPDX-License-Identifier: Apache-2.0
#include "launcher/options.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af {
namespace {

Options parse(const std::vector<std::string>& arguments) {
  return parse_options(arguments).options.value();
}

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    parse_options(arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Options, EverythingFromTheProgramOnIsItsOwn) {
  const std::vector<std::string> odd = {"prog", "a b",   "",          "*", "$X",     "\n",
                                        "--",   "\"q\"", "--workers", "x", "--help", "-v"};
  EXPECT_EQ(parse(odd).command, odd);
  std::vector<std::string> behind = {"--workers", "3", "--verbose", "--"};
  behind.insert(behind.end(), odd.begin(), odd.end());
  const Options options = parse(behind);
  EXPECT_EQ(options.command, odd);
  EXPECT_EQ(options.workers, 3);
  EXPECT_TRUE(options.verbose);
}

TEST(Options, ValuesMayStandBesideOrBehind) {
  EXPECT_EQ(parse({"--workers=4", "x"}).workers, 4);
  EXPECT_EQ(parse({"--run-dir", "/a b", "x"}).run_directory, "/a b");
  EXPECT_FALSE(parse({"x"}).save_before);
  EXPECT_EQ(parse({"--save-before", "90", "x"}).save_before, 90);
  EXPECT_EQ(parse({"--save-before=0", "x"}).save_before, 0);
  EXPECT_EQ(parse({"-v", "x"}).command, std::vector<std::string>{"x"});
  // A program may begin with a dash behind "--", and be an empty text.
  EXPECT_EQ(parse({"--", "-x"}).command, std::vector<std::string>{"-x"});
}

TEST(Options, RefusalsAreOneLineWithANearName) {
  EXPECT_EQ(refusal({"--wrokers=2", "x"}), "unknown option '--wrokers'; did you mean --workers?");
  EXPECT_EQ(refusal({"--nothing-like-it", "x"}), "unknown option '--nothing-like-it'");
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"--workers=x", "x"},
                                              {"--workers=0", "x"},
                                              {"--workers=-1", "x"},
                                              {"--gpus-per-worker=3", "x"},
                                              {"--backend=mpi", "x"},
                                              {"--bootstrap=", "x"},
                                              {"--grace=-1", "x"},
                                              {"--save-before=-1", "x"},
                                              {"--workers"}}) {
    const std::string text = refusal(bad);
    EXPECT_NE(text.find(bad[0].substr(0, bad[0].find('='))), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  EXPECT_NE(refusal({}).find("no program given"), std::string::npos);
}

TEST(Options, HelpAndVersionNeedNoProgram) {
  EXPECT_NE(parse_options({"--help"}).text.find("--run-dir"), std::string::npos);
  EXPECT_EQ(parse_options({"--help"}).text.find("--front"), std::string::npos);
  EXPECT_NE(parse_options({"--version"}).text.find(AF_VERSION), std::string::npos);
}

TEST(Options, ProgramKindByName) {
  EXPECT_EQ(program_kind(parse({"python", "x.py"})), ProgramKind::kTorch);
  EXPECT_EQ(program_kind(parse({"/env/bin/python3.11", "x"})), ProgramKind::kTorch);
  EXPECT_EQ(program_kind(parse({"./train.py"})), ProgramKind::kTorch);
  EXPECT_EQ(program_kind(parse({"build/digits"})), ProgramKind::kAf);
  EXPECT_EQ(program_kind(parse({"--program=torch", "build/digits"})), ProgramKind::kTorch);
}

}  // namespace
}  // namespace af
