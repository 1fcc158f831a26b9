// SPDX-License-Identifier: Apache-2.0
// The settings of af: ONE table. The SPANK plugin, the command line, the environment names, the
// help, docs/settings.md and the Open OnDemand forms derive from it; nobody else lists them.
//
// Everything here is pure and safe to call from any thread. Errors are af::Error, in words, and
// name the setting as the person wrote it where the source is known.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace af {

// Index into settings_table(); the order of the table.
enum class SettingId {
  kMaxWorkers,
  kNWorkers,
  kMinGpuMemoryGb,
  kGpusPerWorker,
  kCpusPerWorker,
  kRamPerWorkerGb,
  kEnv,
  kExplain,
};
inline constexpr std::size_t kSettingCount = 8;

enum class SettingType { kInteger, kPath, kFlag };

// One row. The strings live for ever (static table) and are NUL-terminated.
struct SettingSpec {
  SettingId id;
  const char* name;      // "af-max-workers": the option without its dashes
  const char* env_name;  // "AF_MAX_WORKERS"
  SettingType type;
  int min;                      // kInteger: shipped range, both ends included
  int max;                      // kNoLimit: what the site has decides
  std::optional<int> fallback;  // shipped default; none: see default_words
  const char* argument;         // "N", "GB", "PATH"; "" for a flag: what --help shows after the =
  const char* default_words;    // what to show where there is no number: "any", "the site's"
  const char* help;             // one line
};
inline constexpr int kNoLimit = 1'000'000;

// The one option without a row: af-launch itself submits with it the jobs that join a run. Not for
// people, no default from the environment, no effect on anything inside the job.
inline constexpr const char* kSatelliteOption = "af-satellite";

std::span<const SettingSpec> settings_table();
const SettingSpec& spec_of(SettingId id);

// By option name ("af-max-workers"; leading dashes are allowed) or by variable ("AF_MAX_WORKERS").
// Exact match only; nullptr if there is none.
const SettingSpec* find_setting(std::string_view name);
const SettingSpec* find_setting_by_env(std::string_view env_name);
// As getopt takes options: the exact name or a prefix that only one setting has ("af-cpus").
const SettingSpec* find_setting_or_abbreviation(std::string_view name);

// One line for an option of ours that does not exist: nearest name and all names.
std::string unknown_setting_message(std::string_view option);

// Where a value came from; the later wins over the earlier, as in Slurm.
enum class Source { kDefault, kSite, kScript, kEnvironment, kCommandLine };
const char* source_name(Source source);  // "default", "af.yaml", "#SBATCH", …

// A value as a source gave it, in the order in which it was seen.
struct GivenSetting {
  SettingId id;
  std::string text;  // for a flag: "", or "1"/"yes"/"0"/"no" in the environment
  Source source = Source::kCommandLine;
};

// The settings that the environment gives; `lookup` is getenv or a test's. An empty variable is not
// given. Do not call it inside a job: the variables there describe that job.
using EnvLookup = const char* (*)(const char* name);
std::vector<GivenSetting> settings_from_environment(EnvLookup lookup);

// Range and default of an integer setting at this site (from the table and etc/af.yaml).
struct SettingLimit {
  int min = 1;
  int max = kNoLimit;
  std::optional<int> fallback;
  Source source = Source::kDefault;  // where `fallback` is from
};
struct SettingLimits {
  std::array<SettingLimit, kSettingCount> of{};
  std::string default_env;  // "" = none
  SettingLimits();          // those of the table
};

// The number in `text`: decimal digits only ("4"; not " 4", "0x4", "+4", "1e3", "4.0").
// Throws Error naming the setting and the range.
int parse_setting_number(const SettingSpec& spec, std::string_view text, const SettingLimit& limit,
                         Source source = Source::kCommandLine);
// A flag's value in the environment; options without a value ("", "(null)") mean yes.
bool parse_setting_flag(const SettingSpec& spec, std::string_view text);

// The settings in force. A plain value; copy it freely.
struct Settings {
  std::optional<int> max_workers;  // exactly one of max_workers and n_workers is there
  std::optional<int> n_workers;
  std::optional<int> min_gpu_memory_gb;  // none: any GPU
  int gpus_per_worker = 1;
  int cpus_per_worker = 8;
  int ram_per_worker_gb = 32;
  std::string env;  // "" = none
  bool explain = false;
  bool satellite = false;  // kSatelliteOption: one worker, submitted the site's spare way
  std::array<Source, kSettingCount> sources{};  // of each value, by SettingId

  Source source(SettingId id) const { return sources[static_cast<std::size_t>(id)]; }
  // What the job's AF_MAX_WORKERS says: the most workers, whichever of the two was given.
  int most_workers() const { return n_workers ? *n_workers : max_workers.value_or(1); }
  // The value as text ("" if there is none), for explain and for the environment.
  std::string text_of(SettingId id) const;
};

// Settles `given` (in the order seen) against the precedence of sources and the limits.
// Only values that win are judged, so a bad #SBATCH line that is overridden does no harm.
// Throws Error: bad value, out of range, both worker settings on one command line or both in the
// environment.
Settings resolve_settings(std::span<const GivenSetting> given, const SettingLimits& limits);

// AF_MAX_WORKERS=…, AF_N_WORKERS (if asked), AF_GPUS_PER_WORKER, … as the job's script sees them.
// `env_prefix` (the environment as an absolute path, or "") becomes AF_ENV.
std::vector<std::pair<std::string, std::string>> job_environment(const Settings& settings,
                                                                 const std::string& env_prefix);

}  // namespace af
