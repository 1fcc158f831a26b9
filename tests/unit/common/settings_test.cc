// SPDX-License-Identifier: Apache-2.0
#include "common/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/error.h"

namespace af {
namespace {

using enum SettingId;

std::string message_of(auto&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SettingsTable, RowsAreInTheOrderOfTheirIdsAndNamesAreUnique) {
  std::set<std::string> names, variables;
  for (std::size_t i = 0; i < settings_table().size(); ++i) {
    const SettingSpec& spec = settings_table()[i];
    EXPECT_EQ(static_cast<std::size_t>(spec.id), i);
    EXPECT_TRUE(names.insert(spec.name).second);
    EXPECT_TRUE(variables.insert(spec.env_name).second);
    EXPECT_EQ(find_setting(spec.name), &spec);
    EXPECT_EQ(find_setting(std::string("--") + spec.name), &spec);
    EXPECT_EQ(find_setting_by_env(spec.env_name), &spec);
  }
  EXPECT_EQ(names.size(), kSettingCount);
}

// The variable is the option in capitals: people guess it, so it must not be an exception.
TEST(SettingsTable, VariableIsTheOptionInCapitals) {
  for (const SettingSpec& spec : settings_table()) {
    std::string expected;
    for (const char c : std::string(spec.name))
      expected += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    EXPECT_EQ(spec.env_name, expected);
  }
}

TEST(SettingsTable, TakesAbbreviationsOnlyIfUnique) {
  EXPECT_EQ(find_setting_or_abbreviation("--af-cpus")->id, kCpusPerWorker);
  EXPECT_EQ(find_setting_or_abbreviation("af-max")->id, kMaxWorkers);
  EXPECT_EQ(find_setting_or_abbreviation("af-m"), nullptr);  // max-workers, min-gpu-memory-gb
  EXPECT_EQ(find_setting_or_abbreviation("af-e"), nullptr);
  EXPECT_EQ(find_setting_or_abbreviation("af-env")->id, kEnv);
  EXPECT_EQ(find_setting_or_abbreviation("af-envs"), nullptr);
}

TEST(UnknownSetting, NamesTheNearestAndAll) {
  const struct {
    const char *wrong, *nearest;
  } table[] = {
      {"--af-max-worker=4", "--af-max-workers"},
      {"--af-maxworkers", "--af-max-workers"},
      {"af-workers", "--af-max-workers"},
      {"--af-gpu-memory", "--af-min-gpu-memory-gb"},
      {"--af-gpus-per-workre=2", "--af-gpus-per-worker"},
      {"--af-ram", "--af-ram-per-worker-gb"},
      {"--af-environment", "--af-env"},
      {"--af-explian", "--af-explain"},
  };
  for (const auto& row : table) {
    const std::string message = unknown_setting_message(row.wrong);
    EXPECT_NE(message.find(std::string("did you mean ") + row.nearest + "?"), std::string::npos)
        << message;
    EXPECT_EQ(message.find('='), std::string::npos) << "the value is no part of the name";
    for (const SettingSpec& spec : settings_table())
      EXPECT_NE(message.find(spec.name), std::string::npos);
  }
  EXPECT_EQ(unknown_setting_message("--af-zzzzzzzz").find("did you mean"), std::string::npos);
}

TEST(SettingNumber, TakesDigitsOnly) {
  const SettingSpec& spec = spec_of(kCpusPerWorker);
  const SettingLimit limit{1, 16, 8};
  EXPECT_EQ(parse_setting_number(spec, "4", limit), 4);
  EXPECT_EQ(parse_setting_number(spec, "1", limit), 1);
  EXPECT_EQ(parse_setting_number(spec, "16", limit), 16);
  for (const char* wrong : {"", " 4", "4 ", "0x4", "-1", "+4", "1e3", "4.0", "four", "17", "0",
                            "99999999999999999999", "4\n", "4,5", "４"}) {
    EXPECT_EQ(
        message_of([&] { parse_setting_number(spec, wrong, limit); }),
        "--af-cpus-per-worker=" + std::string(wrong) + ": a whole number from 1 to 16 is expected");
  }
}

TEST(SettingNumber, NamesTheSettingAsItWasWritten) {
  const SettingSpec& spec = spec_of(kGpusPerWorker);
  const SettingLimit limit{1, 2, 1};
  EXPECT_EQ(message_of([&] { parse_setting_number(spec, "3", limit, Source::kEnvironment); }),
            "AF_GPUS_PER_WORKER=3: 1 or 2 is expected");
  EXPECT_EQ(message_of([&] { parse_setting_number(spec, "3", limit, Source::kScript); }),
            "#SBATCH --af-gpus-per-worker=3: 1 or 2 is expected");
}

TEST(SettingNumber, GpuMemoryAboveTheLargestIsSaidAsAFact) {
  EXPECT_EQ(message_of([] {
              parse_setting_number(spec_of(kMinGpuMemoryGb), "40", {1, 16});
            }),
            "--af-min-gpu-memory-gb=40: no GPU here has 40 GB: the largest has 16 GB");
}

TEST(SettingFlag, TakesWhatSpankAndPeopleWrite) {
  const SettingSpec& spec = spec_of(kExplain);
  for (const char* yes : {"", "(null)", "1", "yes", "true", "on"})
    EXPECT_TRUE(parse_setting_flag(spec, yes)) << yes;
  for (const char* no : {"0", "no", "false", "off"})
    EXPECT_FALSE(parse_setting_flag(spec, no)) << no;
  EXPECT_EQ(message_of([&] { parse_setting_flag(spec, "maybe"); }),
            "AF_EXPLAIN=maybe: yes or no is expected");
}

TEST(ResolveSettings, DefaultsWithoutAnythingGiven) {
  const Settings settings = resolve_settings({}, {});
  EXPECT_EQ(settings.max_workers, 1);
  EXPECT_EQ(settings.n_workers, std::nullopt);
  EXPECT_EQ(settings.min_gpu_memory_gb, std::nullopt);
  EXPECT_EQ(settings.gpus_per_worker, 1);
  EXPECT_EQ(settings.cpus_per_worker, 8);
  EXPECT_EQ(settings.ram_per_worker_gb, 32);
  EXPECT_EQ(settings.env, "");
  EXPECT_FALSE(settings.explain);
}

TEST(ResolveSettings, LaterSourceWinsWhateverTheOrder) {
  const GivenSetting script{kCpusPerWorker, "2", Source::kScript};
  const GivenSetting environment{kCpusPerWorker, "3", Source::kEnvironment};
  const GivenSetting line{kCpusPerWorker, "4", Source::kCommandLine};
  const struct {
    std::vector<GivenSetting> given;
    int expected;
    Source source;
  } table[] = {
      {{script}, 2, Source::kScript},
      {{script, environment}, 3, Source::kEnvironment},
      {{environment, script}, 3, Source::kEnvironment},
      {{script, environment, line}, 4, Source::kCommandLine},
      {{line, script}, 4, Source::kCommandLine},
      {{line, {kCpusPerWorker, "5", Source::kCommandLine}}, 5, Source::kCommandLine},
  };
  for (const auto& row : table) {
    const Settings settings = resolve_settings(row.given, {});
    EXPECT_EQ(settings.cpus_per_worker, row.expected);
    EXPECT_EQ(settings.source(kCpusPerWorker), row.source);
  }
}

TEST(ResolveSettings, OfTheTwoWorkerSettingsTheLaterSourceWins) {
  const auto most = [](Source source) { return GivenSetting{kMaxWorkers, "4", source}; };
  const auto exactly = [](Source source) { return GivenSetting{kNWorkers, "2", source}; };
  const Source script = Source::kScript, environment = Source::kEnvironment,
               line = Source::kCommandLine;
  const struct {
    std::vector<GivenSetting> given;
    std::optional<int> max_workers, n_workers;
  } table[] = {
      {{most(script)}, 4, {}},
      {{exactly(script)}, {}, 2},
      {{most(script), exactly(environment)}, {}, 2},
      {{exactly(script), most(environment)}, 4, {}},
      {{most(environment), exactly(line)}, {}, 2},
      {{most(script), exactly(script)}, {}, 2},  // the later line
      {{exactly(script), most(script)}, 4, {}},
      // A source that gives both is no matter where a later one has decided.
      {{most(environment), exactly(environment), most(line)}, 4, {}},
  };
  for (const auto& row : table) {
    const Settings settings = resolve_settings(row.given, {});
    EXPECT_EQ(settings.max_workers, row.max_workers);
    EXPECT_EQ(settings.n_workers, row.n_workers);
  }
  const std::vector<GivenSetting> both_on_line = {exactly(line), most(line)};
  EXPECT_NE(message_of([&] { resolve_settings(both_on_line, {}); }).find("exclude each other"),
            std::string::npos);
  const std::vector<GivenSetting> both_variables = {most(environment), exactly(environment)};
  EXPECT_NE(message_of([&] { resolve_settings(both_variables, {}); }).find("unset one"),
            std::string::npos);
}

TEST(ResolveSettings, JudgesOnlyValuesThatWin) {
  const std::vector<GivenSetting> given = {{kRamPerWorkerGb, "lots", Source::kScript},
                                           {kRamPerWorkerGb, "16", Source::kCommandLine}};
  EXPECT_EQ(resolve_settings(given, {}).ram_per_worker_gb, 16);
  EXPECT_EQ(message_of([&] {
              resolve_settings({given.data(), 1}, {});
            }),
            "#SBATCH --af-ram-per-worker-gb=lots: a whole number from 4 to 64 is expected");
}

TEST(ResolveSettings, LimitsAndDefaultsOfTheSite) {
  SettingLimits limits;
  limits.of[static_cast<std::size_t>(kRamPerWorkerGb)] = {8, 100, 20, Source::kSite};
  limits.default_env = "/work/env";
  const Settings settings = resolve_settings({}, limits);
  EXPECT_EQ(settings.ram_per_worker_gb, 20);
  EXPECT_EQ(settings.source(kRamPerWorkerGb), Source::kSite);
  EXPECT_EQ(settings.env, "/work/env");
  EXPECT_EQ(settings.source(kEnv), Source::kSite);
  const std::vector<GivenSetting> given = {{kRamPerWorkerGb, "101"}};
  EXPECT_EQ(message_of([&] { resolve_settings(given, limits); }),
            "--af-ram-per-worker-gb=101: a whole number from 8 to 100 is expected");
}

TEST(ResolveSettings, AnEmptyEnvironmentPathIsRefused) {
  const std::vector<GivenSetting> given = {{kEnv, "", Source::kCommandLine}};
  EXPECT_EQ(message_of([&] { resolve_settings(given, {}); }),
            "--af-env=: the path of an environment is expected");
}

TEST(SettingsFromEnvironment, TakesWhatIsNotEmpty) {
  const auto given = settings_from_environment([](const char* name) -> const char* {
    static const std::map<std::string, const char*> variables = {
        {"AF_N_WORKERS", "3"}, {"AF_ENV", ""}, {"AF_EXPLAIN", "1"}, {"AF_RUN_ID", "7"}};
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].id, kNWorkers);
  EXPECT_EQ(given[0].text, "3");
  EXPECT_EQ(given[0].source, Source::kEnvironment);
  EXPECT_EQ(given[1].id, kExplain);
}

TEST(JobEnvironment, SaysMaxWorkersAlsoWithNWorkers) {
  const std::vector<GivenSetting> given = {{kNWorkers, "4"}, {kMinGpuMemoryGb, "6"}};
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"AF_MAX_WORKERS", "4"},       {"AF_N_WORKERS", "4"},       {"AF_MIN_GPU_MEMORY_GB", "6"},
      {"AF_GPUS_PER_WORKER", "1"},   {"AF_CPUS_PER_WORKER", "8"}, {"AF_RAM_PER_WORKER_GB", "32"},
      {"AF_ENV", "/work/users/ada"},
  };
  EXPECT_EQ(job_environment(resolve_settings(given, {}), "/work/users/ada"), expected);
}

TEST(JobEnvironment, LeavesOutWhatWasNotAsked) {
  for (const auto& [name, value] : job_environment(resolve_settings({}, {}), "")) {
    EXPECT_NE(name, "AF_N_WORKERS");
    EXPECT_NE(name, "AF_ENV");
    EXPECT_NE(name, "AF_EXPLAIN");
    EXPECT_NE(name, "AF_MIN_GPU_MEMORY_GB");
    EXPECT_NE(value, "");
  }
}

}  // namespace
}  // namespace af
