// SPDX-License-Identifier: Apache-2.0
// The table of settings, and how the values of several sources are settled.
#include "common/settings.h"

#include <algorithm>
#include <iterator>

#include "common/error.h"
#include "common/nearest_name.h"

namespace af {
namespace {

using Id = SettingId;
using Type = SettingType;

constexpr SettingSpec kTable[] = {
    {Id::kMaxWorkers, "af-max-workers", "AF_MAX_WORKERS", Type::kInteger, 1, kNoLimit, 1, "N", "1",
     "the most GPUs: as many as are free, at least one"},
    {Id::kNWorkers, "af-n-workers", "AF_N_WORKERS", Type::kInteger, 1, kNoLimit, std::nullopt, "N",
     "-", "exactly so many, start only if all are free; excludes af-max-workers"},
    {Id::kMinGpuMemoryGb, "af-min-gpu-memory-gb", "AF_MIN_GPU_MEMORY_GB", Type::kInteger, 1,
     kNoLimit, std::nullopt, "GB", "any", "least memory of a GPU"},
    {Id::kGpusPerWorker, "af-gpus-per-worker", "AF_GPUS_PER_WORKER", Type::kInteger, 1, 2, 1, "N",
     "1", "2: a model on two GPUs; never on MIG instances"},
    {Id::kCpusPerWorker, "af-cpus-per-worker", "AF_CPUS_PER_WORKER", Type::kInteger, 1, 16, 8, "N",
     "8", "CPU cores of a worker"},
    {Id::kRamPerWorkerGb, "af-ram-per-worker-gb", "AF_RAM_PER_WORKER_GB", Type::kInteger, 4, 64, 32,
     "GB", "32", "memory of a worker"},
    {Id::kEnv, "af-env", "AF_ENV", Type::kPath, 0, 0, std::nullopt, "PATH", "the site's",
     "your own environment: prefix of a Pixi, conda or venv environment"},
    {Id::kExplain, "af-explain", "AF_EXPLAIN", Type::kFlag, 0, 0, std::nullopt, "", "no",
     "print the exact Slurm request and where it would run"},
};
static_assert(std::size(kTable) == kSettingCount);

std::size_t index(SettingId id) {
  return static_cast<std::size_t>(id);
}

// As the person wrote it: "--af-n-workers", "AF_N_WORKERS", "#SBATCH --af-n-workers".
std::string spelled(const SettingSpec& spec, Source source) {
  switch (source) {
    case Source::kEnvironment:
      return spec.env_name;
    case Source::kScript:
      return std::string("#SBATCH --") + spec.name;
    default:
      return std::string("--") + spec.name;
  }
}

std::string range_words(const SettingLimit& limit) {
  if (limit.max >= kNoLimit)
    return fmt::format("a whole number of at least {} is expected", limit.min);
  if (limit.min == limit.max) return fmt::format("only {} is possible", limit.min);
  if (limit.max == limit.min + 1) return fmt::format("{} or {} is expected", limit.min, limit.max);
  return fmt::format("a whole number from {} to {} is expected", limit.min, limit.max);
}

// The value that wins for each setting, and how often the winning source gave it.
struct Winners {
  std::array<const GivenSetting*, kSettingCount> of{};

  explicit Winners(std::span<const GivenSetting> given) {
    for (const GivenSetting& one : given) {
      const GivenSetting*& best = of[index(one.id)];
      if (!best || one.source >= best->source) best = &one;
    }
  }
  const GivenSetting* get(SettingId id) const { return of.at(index(id)); }
};

// The worker setting that counts: that of the later source, and within #SBATCH lines the later
// line.
const GivenSetting* choose_worker_setting(std::span<const GivenSetting> given,
                                          const Winners& winners) {
  const GivenSetting* most = winners.get(Id::kMaxWorkers);
  const GivenSetting* exactly = winners.get(Id::kNWorkers);
  if (!most || !exactly) return most ? most : exactly;
  if (most->source != exactly->source) return most->source > exactly->source ? most : exactly;
  if (most->source == Source::kCommandLine)
    throw Error(
        "--af-max-workers and --af-n-workers exclude each other: give the first for as many GPUs "
        "as are free, the second for an exact number");
  // Variables have no order, so none of the two can be the later one.
  if (most->source == Source::kEnvironment)
    throw Error(
        "AF_MAX_WORKERS and AF_N_WORKERS are both in the environment and exclude each other: unset "
        "one of them");
  return std::max(most, exactly, [&](const GivenSetting* a, const GivenSetting* b) {
    return a - given.data() < b - given.data();
  });
}

}  // namespace

std::span<const SettingSpec> settings_table() {
  return kTable;
}

const SettingSpec& spec_of(SettingId id) {
  return kTable[index(id)];
}

const SettingSpec* find_setting(std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  const auto* found =
      std::ranges::find_if(kTable, [&](const auto& row) { return name == row.name; });
  return found == std::end(kTable) ? nullptr : found;
}

const SettingSpec* find_setting_by_env(std::string_view env_name) {
  const auto* found =
      std::ranges::find_if(kTable, [&](const auto& row) { return env_name == row.env_name; });
  return found == std::end(kTable) ? nullptr : found;
}

const SettingSpec* find_setting_or_abbreviation(std::string_view name) {
  if (const SettingSpec* exact = find_setting(name)) return exact;
  while (name.starts_with('-')) name.remove_prefix(1);
  const SettingSpec* found = nullptr;
  for (const SettingSpec& row : kTable) {
    if (!std::string_view(row.name).starts_with(name)) continue;
    if (found) return nullptr;
    found = &row;
  }
  return found;
}

std::string unknown_setting_message(std::string_view option) {
  while (option.starts_with('-')) option.remove_prefix(1);
  option = option.substr(0, option.find('='));
  std::vector<std::string> names;
  std::string all;
  for (const SettingSpec& row : kTable) {
    names.emplace_back(row.name);
    all += (all.empty() ? "--" : ", --") + names.back();
  }
  const auto nearest = nearest_name(option, names);
  return fmt::format("there is no option --{}{}; af has {}", option,
                     nearest ? fmt::format(", did you mean --{}?", *nearest) : "", all);
}

const char* source_name(Source source) {
  switch (source) {
    case Source::kDefault:
      return "default";
    case Source::kSite:
      return "af.yaml";
    case Source::kScript:
      return "#SBATCH";
    case Source::kEnvironment:
      return "environment";
    case Source::kCommandLine:
      return "command line";
  }
  return "?";
}

SettingLimits::SettingLimits() {
  for (const SettingSpec& row : kTable)
    of[index(row.id)] = {row.min, row.max, row.fallback, Source::kDefault};
}

std::vector<GivenSetting> settings_from_environment(EnvLookup lookup) {
  std::vector<GivenSetting> given;
  for (const SettingSpec& row : kTable) {
    const char* text = lookup(row.env_name);
    if (text && *text) given.push_back({row.id, text, Source::kEnvironment});
  }
  return given;
}

int parse_setting_number(const SettingSpec& spec, std::string_view text, const SettingLimit& limit,
                         Source source) {
  const auto refuse = [&] {
    return Error::format("{}={}: {}", spelled(spec, source), text, range_words(limit));
  };
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) throw refuse();
  long value = 0;
  for (const char digit : text) value = std::min(10 * value + (digit - '0'), 10L * kNoLimit);
  // The one range that is a fact of the site and not a rule; so it is said as a fact.
  if (spec.id == Id::kMinGpuMemoryGb && value > limit.max)
    throw Error::format("{}={}: no GPU here has {} GB: the largest has {} GB",
                        spelled(spec, source), text, text, limit.max);
  if (value < limit.min || value > limit.max) throw refuse();
  return static_cast<int>(value);
}

bool parse_setting_flag(const SettingSpec& spec, std::string_view text) {
  // What SPANK hands over for an option without argument: NULL, "" or "(null)", by context.
  for (const char* yes : {"", "(null)", "1", "yes", "true", "on"})
    if (text == yes) return true;
  for (const char* no : {"0", "no", "false", "off"})
    if (text == no) return false;
  throw Error::format("{}={}: yes or no is expected", spec.env_name, text);
}

std::string Settings::text_of(SettingId id) const {
  const auto number = [](std::optional<int> value) {
    return value ? std::to_string(*value) : std::string();
  };
  switch (id) {
    case Id::kMaxWorkers:
      return number(max_workers);
    case Id::kNWorkers:
      return number(n_workers);
    case Id::kMinGpuMemoryGb:
      return number(min_gpu_memory_gb);
    case Id::kGpusPerWorker:
      return number(gpus_per_worker);
    case Id::kCpusPerWorker:
      return number(cpus_per_worker);
    case Id::kRamPerWorkerGb:
      return number(ram_per_worker_gb);
    case Id::kEnv:
      return env;
    case Id::kExplain:
      return explain ? "yes" : "no";
  }
  return {};
}

Settings resolve_settings(std::span<const GivenSetting> given, const SettingLimits& limits) {
  Winners winners(given);
  const GivenSetting* workers = choose_worker_setting(given, winners);
  for (const Id id : {Id::kMaxWorkers, Id::kNWorkers})
    if (winners.get(id) != workers) winners.of[index(id)] = nullptr;

  Settings settings;
  const auto number = [&](SettingId id) -> std::optional<int> {
    const SettingLimit& limit = limits.of[index(id)];
    const GivenSetting* one = winners.get(id);
    settings.sources[index(id)] = one ? one->source : limit.source;
    if (!one) return limit.fallback;
    return parse_setting_number(spec_of(id), one->text, limit, one->source);
  };
  settings.n_workers = number(Id::kNWorkers);
  settings.max_workers = number(Id::kMaxWorkers);
  // A default of the one does not stand beside a value of the other.
  if (workers && workers->id == Id::kNWorkers) settings.max_workers.reset();
  if (workers && workers->id == Id::kMaxWorkers) settings.n_workers.reset();
  if (!workers && settings.n_workers) settings.max_workers.reset();
  if (!settings.n_workers && !settings.max_workers) settings.max_workers = 1;
  settings.min_gpu_memory_gb = number(Id::kMinGpuMemoryGb);
  settings.gpus_per_worker = number(Id::kGpusPerWorker).value_or(1);
  settings.cpus_per_worker = number(Id::kCpusPerWorker).value_or(8);
  settings.ram_per_worker_gb = number(Id::kRamPerWorkerGb).value_or(32);

  settings.env = limits.default_env;
  settings.sources[index(Id::kEnv)] = limits.default_env.empty() ? Source::kDefault : Source::kSite;
  if (const GivenSetting* one = winners.get(Id::kEnv)) {
    if (one->text.empty())
      throw Error::format("{}=: the path of an environment is expected",
                          spelled(spec_of(Id::kEnv), one->source));
    settings.env = one->text;
    settings.sources[index(Id::kEnv)] = one->source;
  }
  if (const GivenSetting* one = winners.get(Id::kExplain)) {
    settings.explain = parse_setting_flag(spec_of(Id::kExplain), one->text);
    settings.sources[index(Id::kExplain)] = one->source;
  }
  return settings;
}

std::vector<std::pair<std::string, std::string>> job_environment(const Settings& settings,
                                                                 const std::string& env_prefix) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const SettingSpec& row : kTable) {
    if (row.type == Type::kFlag) continue;
    std::string text = row.id == Id::kEnv          ? env_prefix
                       : row.id == Id::kMaxWorkers ? std::to_string(settings.most_workers())
                                                   : settings.text_of(row.id);
    if (!text.empty()) variables.emplace_back(row.env_name, std::move(text));
  }
  return variables;
}

}  // namespace af
