// SPDX-License-Identifier: Apache-2.0
// The documentation's table of settings is the code's.
#include <gtest/gtest.h>

#include "common/atomic_file.h"
#include "common/settings_table_text.h"
#include "common/site.h"
#include "tests/unit/common/repository.h"

namespace af {
namespace {

TEST(SettingsDocument, HoldsTheTableOfTheCode) {
  const std::string document = read_file(repository() / "docs/settings.md");
  EXPECT_NE(document.find("\n" + settings_markdown() + "\n"), std::string::npos)
      << "put this into docs/settings.md:\n"
      << settings_markdown();
}

TEST(SettingsText, ShowsTheSitesLimits) {
  SettingLimits limits;
  limits.of[static_cast<std::size_t>(SettingId::kRamPerWorkerGb)] = {8, 128, 64, Source::kSite};
  limits.of[static_cast<std::size_t>(SettingId::kMinGpuMemoryGb)].max = 16;
  limits.default_env = "/work/env";
  const std::string text = settings_text(limits);
  for (const char* expected :
       {"64          8 to 128 ", "any         1 to 16 ", "/work/env   a path"})
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
}

// Every key that docs/site.md's example uses exists.
TEST(SiteDocument, ItsExampleIsRight) {
  const std::string document = read_file(repository() / "docs/site.md");
  const std::size_t start = document.find("    gpus:");
  ASSERT_NE(start, std::string::npos);
  const Site site = parse_site(document.substr(start), "docs/site.md");
  EXPECT_EQ(site.gpus.at(0).feature, "T4");
  EXPECT_EQ(site.spare.partition, "hammer-standby");
}

}  // namespace
}  // namespace af
