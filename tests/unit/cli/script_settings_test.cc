// SPDX-License-Identifier: Apache-2.0
#include "cli/script_settings.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af::cli {
namespace {

TEST(GivenInScript, AsThePluginIsGivenThem) {
  const auto given =
      given_in_script("#!/bin/sh\n#SBATCH --af-n-workers=4\n#SBATCH --af-cpus 2\n", "t.sh");
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].id, SettingId::kNWorkers);
  EXPECT_EQ(given[0].text, "4");
  EXPECT_EQ(given[0].source, Source::kScript);
  EXPECT_EQ(given[1].id, SettingId::kCpusPerWorker) << "getopt takes unique abbreviations";
}

TEST(GivenInScript, AnUnknownOneHasFileLineAndNearestName) {
  try {
    given_in_script("#!/bin/sh\n\n#SBATCH --af-n-worker=4\n", "t.sh");
    // "af-n-worker" is a prefix of "af-n-workers": getopt takes it, and so do we.
  } catch (const Error& error) {
    FAIL() << error.what();
  }
  try {
    given_in_script("#!/bin/sh\n\n#SBATCH --af-n-wrokers=4\n", "t.sh");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what())
                    .starts_with("t.sh:3: there is no option --af-n-wrokers, did you mean "
                                 "--af-n-workers?"))
        << error.what();
  }
}

}  // namespace
}  // namespace af::cli
