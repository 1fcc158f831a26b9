// SPDX-License-Identifier: Apache-2.0
#include "common/site.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/error.h"
#include "tests/unit/common/repository.h"

namespace af {
namespace {

const SettingLimit& limit_of(const Site& site, SettingId id) {
  return site.limits.of[static_cast<std::size_t>(id)];
}

TEST(Site, TheShippedFileFitsTheSandbox) {
  const Site site = load_site(repository() / "etc/af.yaml");
  EXPECT_TRUE(site.enabled);
  ASSERT_EQ(site.gpus.size(), 2u);
  EXPECT_EQ(site.gpus[0].name, "t4");
  EXPECT_EQ(site.gpus[0].gres_type, "t4");
  EXPECT_EQ(site.gpus[0].memory_gb, 16);
  EXPECT_FALSE(site.gpus[0].mig);
  EXPECT_EQ(site.gpus[0].max_per_node, 2);
  EXPECT_EQ(site.gpus[0].total, 4);
  EXPECT_EQ(site.gpus[1].gres_type, "1g.5gb");
  EXPECT_EQ(site.gpus[1].memory_gb, 5);
  EXPECT_TRUE(site.gpus[1].mig);
  EXPECT_EQ(site.gpus[1].instances_per_card, 2);
  EXPECT_EQ(site.gpus[1].total, 4);
  EXPECT_EQ(site.kept.partition, "kept");
  EXPECT_EQ(site.spare.partition, "spare");
  EXPECT_EQ(limit_of(site, SettingId::kMinGpuMemoryGb).max, 16);
  EXPECT_EQ(limit_of(site, SettingId::kCpusPerWorker).fallback, 8);
  EXPECT_EQ(limit_of(site, SettingId::kRamPerWorkerGb).max, 64);
  EXPECT_EQ(site.storage.jobs_dont_see, std::vector<std::string>{"/home"});
}

TEST(Site, TheLeastFileTakesEverythingElseFromTheTable) {
  const Site site = parse_site("gpus: [{name: a, memory_gb: 8, max_per_node: 1, total: 2}]", "f");
  EXPECT_TRUE(site.enabled);
  EXPECT_EQ(site.kept.partition, "");
  EXPECT_EQ(site.gpus[0].instances_per_card, 1);
  EXPECT_EQ(limit_of(site, SettingId::kCpusPerWorker).fallback, 8);
  EXPECT_EQ(limit_of(site, SettingId::kCpusPerWorker).source, Source::kDefault);
  EXPECT_EQ(site.largest_gpu_memory_gb(), 8);
}

TEST(Site, ReadsWhatTheShippedFileLeavesOut) {
  const Site site = parse_site(R"(
enabled: no
disabled_reason: maintenance
gpus:
  - {name: a, feature: A, memory_gb: 8, max_per_node: 1, total: 2, partitions: [x, y]}
submit: {kept: {partition: x, qos: q, account: c}}
settings: {af-ram-per-worker-gb: {min: 8, max: 128, default: 64}, af-max-workers: {max: 2}}
environment: {default: /work/env}
conflicts: {refuse: [exclusive]}
)",
                               "f");
  EXPECT_FALSE(site.enabled);
  EXPECT_EQ(site.disabled_reason, "maintenance");
  EXPECT_EQ(site.gpus[0].partitions, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(site.kept.qos, "q");
  EXPECT_EQ(site.kept.account, "c");
  EXPECT_EQ(limit_of(site, SettingId::kRamPerWorkerGb).min, 8);
  EXPECT_EQ(limit_of(site, SettingId::kRamPerWorkerGb).fallback, 64);
  EXPECT_EQ(limit_of(site, SettingId::kRamPerWorkerGb).source, Source::kSite);
  EXPECT_EQ(limit_of(site, SettingId::kMaxWorkers).max, 2);
  EXPECT_EQ(site.limits.default_env, "/work/env");
  EXPECT_EQ(site.refused_options, std::vector<std::string>{"exclusive"});
}

TEST(Site, ErrorsNameFileLineKeyAndWhatIsExpected) {
  const std::string gpu = "gpus: [{name: a, memory_gb: 8, max_per_node: 1, total: 2}]\n";
  const struct {
    std::string yaml, message;
  } table[] = {
      {"", "af.yaml:1: gpus is missing: list at least one kind of GPU"},
      {"gpus: []", "af.yaml:1: gpus is missing: list at least one kind of GPU"},
      {"- a", "af.yaml:1: the file: expected a mapping (key: value)"},
      {"gpus: 3", "af.yaml:1: gpus: expected a list, not '3'"},
      {"a: [", "af.yaml:1: not YAML: "},
      {"\n\na: b: c", "af.yaml:3: not YAML: "},
      {gpu + "gpu: 1",
       "af.yaml:2: gpu: there is no such key, did you mean 'gpus'? (expected: enabled, "},
      {gpu + "enabled: maybe", "af.yaml:2: enabled: expected yes or no, not 'maybe'"},
      {gpu + "enabled: yes\nenabled: no", "af.yaml:3: enabled: expected each key only once"},
      {"gpus:\n  - name: a\n    memory_gb: many\n",
       "af.yaml:3: gpus[0].memory_gb: expected a whole number of at least 1, not 'many'"},
      {"gpus:\n  - name: a\n    memory_gb: 0x10\n",
       "af.yaml:3: gpus[0].memory_gb: expected a whole number of at least 1, not '0x10'"},
      {"gpus:\n  - name: a\n    memory_gb: 0\n", "af.yaml:3: gpus[0].memory_gb: expected a whole"},
      {"gpus:\n  - name: a\n    memory: 8\n", "af.yaml:2: gpus[0].memory_gb is missing: "},
      {"gpus: [{name: a, memory_gb: 8, max_per_node: 1, total: 2, memory: 3}]",
       "af.yaml:1: gpus[0].memory: there is no such key, did you mean 'memory_gb'?"},
      {"gpus: [{memory_gb: 8}]", "af.yaml:1: gpus[0].name is missing: "},
      {"gpus: [{name: a, memory_gb: 8, max_per_node: 4, total: 2}]",
       "af.yaml:1: gpus[0].total: cannot be less"},
      {"gpus: [{name: a, memory_gb: 8, max_per_node: 1, total: 2, instances_per_card: 2}]",
       "af.yaml:1: gpus[0].mig: "},
      {"gpus:\n  - {name: a, memory_gb: 8, max_per_node: 1, total: 2}\n"
       "  - {name: b, memory_gb: 9, max_per_node: 1, total: 2}",
       "af.yaml:3: gpus[1].gres_type: give a gres_type or feature that tells b from a"},
      {"gpus:\n  - {name: a, memory_gb: 8, max_per_node: 1, total: 2, gres_type: x}\n"
       "  - {name: a, memory_gb: 9, max_per_node: 1, total: 2, gres_type: y}",
       "af.yaml:3: gpus[1].name: expected a name only once, not 'a'"},
      {gpu + "settings: {af-max-worker: {max: 3}}",
       "af.yaml:2: settings.af-max-worker: there is no such key, did you mean 'af-max-workers'?"},
      {gpu + "settings: {af-cpus-per-worker: {min: 9, max: 3}}",
       "af.yaml:2: settings.af-cpus-per-worker.max: min 9 is above max 3"},
      {gpu + "settings: {af-cpus-per-worker: {default: 20}}",
       "af.yaml:2: settings.af-cpus-per-worker.default: the default 20 is outside"},
      {gpu + "settings: {af-cpus-per-worker: 4}",
       "af.yaml:2: settings.af-cpus-per-worker: expected a mapping (key: value), not '4'"},
      {gpu + "storage: {jobs_see: [work]}",
       "af.yaml:2: storage.jobs_see: expected a list of absolute paths, not 'work'"},
      {gpu + "storage: {jobs_see: /work}", "af.yaml:2: storage.jobs_see: expected a list, not"},
      {gpu + "environment: {default: env}", "af.yaml:2: environment.default: "},
      {gpu + "submit: {keep: {}}",
       "af.yaml:2: submit.keep: there is no such key, did you mean "
       "'kept'?"},
  };
  for (const auto& row : table) {
    try {
      parse_site(row.yaml, "af.yaml");
      ADD_FAILURE() << "no error for: " << row.yaml;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, row.message.size()), row.message);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
    }
  }
}

TEST(Site, AFileThatIsNotThereIsNamed) {
  try {
    load_site("/nonexistent/af.yaml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot read /nonexistent/af.yaml: No such file or directory");
  }
}

TEST(FindSiteFile, OptionThenVariableThenWhatIsThere) {
  const std::filesystem::path shipped = repository() / "etc/af.yaml";
  EXPECT_EQ(find_site_file("/a", "/b", {shipped}), "/a");
  EXPECT_EQ(find_site_file("", "/b", {shipped}), "/b");
  EXPECT_EQ(find_site_file("", "", {"/nonexistent", shipped}), shipped);
  EXPECT_EQ(find_site_file("", nullptr, {shipped}), shipped);
  EXPECT_THROW(find_site_file("", nullptr, {"/nonexistent"}), Error);
}

}  // namespace
}  // namespace af
