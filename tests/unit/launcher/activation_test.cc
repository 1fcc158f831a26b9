// SPDX-License-Identifier: Apache-2.0
// Case B43: activate.d scripts are sourced by path.
#include "launcher/activation.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace af {
namespace {

namespace fs = std::filesystem;

class Activation : public testing::Test {
 protected:
  Activation() {
    std::string name = (fs::temp_directory_path() / "af-activation-XXXXXX").string();
    prefix_ = ::mkdtemp(name.data());
  }
  ~Activation() override { fs::remove_all(prefix_); }
  void script(const std::string& name, const std::string& text) {
    fs::create_directories(prefix_ / "etc/conda/activate.d");
    std::ofstream(prefix_ / "etc/conda/activate.d" / name) << text;
  }
  const Environment before_ = {
      {"PATH", "/usr/bin:/bin"}, {"GONE", "1"}, {"PWD", "/there"}, {"LINES", "a\nb=c"}};
  fs::path prefix_;
};

TEST_F(Activation, WithoutScriptsNothingChanges) {
  const Activated result = activate(prefix_, before_);
  EXPECT_EQ(result.environment, before_);
  EXPECT_TRUE(result.warnings.empty());
}

TEST_F(Activation, ScriptsSetAndUnsetInTheOrderOfTheirNames) {
  script("b.sh", "export ORDER=\"$ORDER-b\"; echo printed; unset GONE");
  script("a.sh", "export ORDER=a DATA=$'two\\nlines'; NOT_EXPORTED=1");
  script("c.csh", "setenv WRONG 1");
  const Activated result = activate(prefix_, before_);
  Environment expected = before_;
  expected.erase("GONE");
  expected["ORDER"] = "a-b";
  expected["DATA"] = "two\nlines";
  EXPECT_EQ(result.environment, expected);
  EXPECT_TRUE(result.warnings.empty());
}

TEST_F(Activation, AScriptThatFailsIsNamedAndTheOthersCount) {
  script("a.sh", "export FIRST=1; false");
  script("b.sh", "export SECOND=2");
  const Activated result = activate(prefix_, before_);
  EXPECT_EQ(result.environment.at("FIRST"), "1");
  EXPECT_EQ(result.environment.at("SECOND"), "2");
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_NE(result.warnings[0].find("a.sh"), std::string::npos);
}

TEST_F(Activation, AScriptThatEndsTheShellOrHangsLeavesTheEnvironmentAsItWas) {
  script("a.sh", "export FIRST=1; exit 0");
  Activated result = activate(prefix_, before_);
  EXPECT_EQ(result.environment, before_);
  EXPECT_EQ(result.warnings.size(), 1u);
  script("a.sh", "sleep 1000");
  result = activate(prefix_, before_, 0.2);
  EXPECT_EQ(result.environment, before_);
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_NE(result.warnings[0].find("0.2 s"), std::string::npos);
}

}  // namespace
}  // namespace af
