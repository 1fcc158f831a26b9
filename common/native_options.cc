// SPDX-License-Identifier: Apache-2.0
#include "common/native_options.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "common/error.h"

namespace af {
namespace {

constexpr char kGpus[] = "--af-max-workers or --af-n-workers (and --af-gpus-per-worker)";
constexpr char kWorkers[] = "--af-n-workers or --af-max-workers";
constexpr char kCpus[] = "--af-cpus-per-worker";
constexpr char kMemory[] = "--af-ram-per-worker-gb";

// nullptr: kept as the person gave it.
struct Rule {
  const char* option;
  const char* use_instead;
};
constexpr Rule kRules[] = {
    {"gres", kGpus},
    {"gpus", kGpus},
    {"gpus-per-node", kGpus},
    {"gpus-per-socket", kGpus},
    {"gpus-per-task", kGpus},
    {"tres-per-task", kGpus},
    {"ntasks", kWorkers},
    {"ntasks-per-node", kWorkers},
    {"ntasks-per-core", kWorkers},
    {"ntasks-per-socket", kWorkers},
    {"ntasks-per-gpu", kWorkers},
    {"cpus-per-task", kCpus},
    {"cpus-per-gpu", kCpus},
    {"mem", kMemory},
    {"mem-per-cpu", kMemory},
    {"mem-per-gpu", kMemory},
    {"partition", nullptr},
    {"qos", nullptr},
    {"account", nullptr},
    {"constraint", nullptr},
    {"nodes", nullptr},
    {"nodelist", nullptr},
    {"exclude", nullptr},
    {"exclusive", nullptr},
    {"reservation", nullptr},
    {"time", nullptr},
    {"gpu-bind", nullptr},
    {"output", nullptr},
    {"error", nullptr},
    {"chdir", nullptr},
    {"job-name", nullptr},
};

}  // namespace

const char* tool_name(Tool tool) {
  switch (tool) {
    case Tool::kSbatch:
      return "sbatch";
    case Tool::kSrun:
      return "srun";
    case Tool::kSalloc:
      return "salloc";
  }
  return "?";
}

std::string NativeOptions::get(std::string_view name) const {
  const auto found = set.find(name);
  return found == set.end() ? "" : found->second;
}

std::span<const char* const> native_options_of_interest() {
  static const auto names = [] {
    std::array<const char*, std::size(kRules)> all{};
    std::ranges::transform(kRules, all.begin(), [](const Rule& rule) { return rule.option; });
    return all;
  }();
  return names;
}

void refuse_contradictions(const NativeOptions& native, const Site& site) {
  for (const Rule& rule : kRules) {
    const auto given = native.set.find(rule.option);
    if (!rule.use_instead || given == native.set.end()) continue;
    throw Error::format(
        "--{}{}{} contradicts the --af-* options, which ask for it themselves: "
        "leave it out and use {}",
        rule.option, given->second.empty() ? "" : "=", given->second, rule.use_instead);
  }
  for (const std::string& option : site.refused_options)
    if (native.set.contains(option))
      throw Error::format("--{} cannot be used with --af-* options here ({} refuses it)", option,
                          site.file);
}

NodeRange parse_node_range(std::string_view nodes) {
  NodeRange range;
  const char* end = nodes.data() + nodes.size();
  const auto [rest, failed] = std::from_chars(nodes.data(), end, range.min);
  if (failed != std::errc()) return {};
  range.max = range.min;
  if (rest != end && *rest == '-') std::from_chars(rest + 1, end, range.max);
  return range;
}

}  // namespace af
