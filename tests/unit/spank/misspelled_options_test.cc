// SPDX-License-Identifier: Apache-2.0
#include "spank/misspelled_options.h"

#include <gtest/gtest.h>

#include <vector>

#include "spank/plugin_arguments.h"

namespace af::spank {
namespace {

using Words = std::vector<std::string>;

TEST(MisspelledOptionTest, NamesTheNearest) {
  const std::string message = misspelled_option_message(Words{"--af-n-wokers=2", "run.sh"}, "");
  EXPECT_NE(message.find("--af-n-wokers"), std::string::npos) << message;
  EXPECT_NE(message.find("did you mean --af-n-workers"), std::string::npos) << message;
}

TEST(MisspelledOptionTest, LooksIntoTheScript) {
  const std::string message =
      misspelled_option_message(Words{"run.sh"}, "#!/bin/sh\n#SBATCH --af-max-worker5=2\ntrue\n");
  EXPECT_NE(message.find("did you mean --af-max-workers"), std::string::npos) << message;
}

TEST(MisspelledOptionTest, IsSilentWhereAllIsRight) {
  EXPECT_EQ(misspelled_option_message(Words{"--af-max=2", "--af-explain", "run.sh"}, ""), "");
  EXPECT_EQ(misspelled_option_message(Words{"--mem=x", "prog", "--af-of-the-program"}, ""), "");
  EXPECT_EQ(misspelled_option_message(Words{"--mem=x", "--", "--af-script"}, ""), "");
  EXPECT_EQ(misspelled_option_message(Words{}, "#!/bin/sh\ntrue\n#SBATCH --af-nonsense\n"), "");
}

TEST(PluginArgumentsTest, KnowsConfigAndKeepsMistakes) {
  const char* argv[] = {"config=/etc/af.yaml", "confg=/x", "config="};
  const PluginArguments arguments = parse_plugin_arguments(3, argv);
  EXPECT_EQ(arguments.config, "/etc/af.yaml");
  ASSERT_EQ(arguments.mistakes.size(), 2u);
  EXPECT_NE(arguments.mistakes[0].find("confg=/x"), std::string::npos);
}

}  // namespace
}  // namespace af::spank
