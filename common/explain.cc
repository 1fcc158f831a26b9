// SPDX-License-Identifier: Apache-2.0
#include "common/explain.h"

#include <algorithm>

#include "common/error.h"

namespace af {
namespace {

std::string option_words(const std::string& name, const std::string& value) {
  return " --" + name + (value.empty() ? "" : "=" + shell_quoted(value));
}

// What slurm_option_get() answers where a person wrote something shorter.
std::string person_wrote(const std::string& name, const std::string& value) {
  if (name == "nodes") {
    const NodeRange range = parse_node_range(value);
    if (range.min > 0 && range.min == range.max) return std::to_string(range.min);
  }
  if (name == "exclusive" && value == "exclusive") return "";
  return value;
}

std::string setting_line(const SettingSpec& spec, const Settings& settings) {
  const std::string value = settings.text_of(spec.id);
  if (!value.empty())
    return fmt::format("  {:<22}{:<12}{}\n", spec.name, value,
                       source_name(settings.source(spec.id)));
  const char* nothing = spec.id == SettingId::kMinGpuMemoryGb ? "any"
                        : spec.type == SettingType::kPath     ? "none"
                                                              : "-";
  return fmt::format("  {:<22}{}\n", spec.name, nothing);
}

std::string class_words(const GpuClass& gpu) {
  return fmt::format("{} ({} GB{}, {} at the site, at most {} on a node)", gpu.name, gpu.memory_gb,
                     gpu.mig ? ", MIG instance" : "", gpu.total, gpu.max_per_node);
}

}  // namespace

std::string shell_quoted(const std::string& text) {
  const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,%+@";
  if (!text.empty() && text.find_first_not_of(plain) == text.npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string native_line(const NativeOptions& native, const Request& request,
                        const std::string& trailer) {
  std::string line = tool_name(native.tool);
  for (const SlurmOption& option : request.options) line += option_words(option.name, option.value);
  for (const auto& given : native.set) {
    // Ours combines both (the constraint).
    const bool replaced = std::ranges::any_of(
        request.options, [&](const SlurmOption& option) { return option.name == given.first; });
    if (!replaced) line += option_words(given.first, person_wrote(given.first, given.second));
  }
  return trailer.empty() ? line : line + " " + trailer;
}

std::string explain(const Settings& settings, const Site& site, const NativeOptions& native,
                    const Request& request, const std::string& trailer) {
  std::string text = "af: settings\n";
  for (const SettingSpec& spec : settings_table())
    if (spec.type != SettingType::kFlag) text += setting_line(spec, settings);
  text += "af: request\n  " + native_line(native, request, trailer) + "\n";
  text += "af: where\n  partition ";
  if (request.partitions.empty()) text += "Slurm's default";
  for (std::size_t i = 0; i < request.partitions.size(); ++i)
    text += (i ? ", " : "") + request.partitions[i];
  text += "\n";
  for (const std::string& name : request.classes)
    for (const GpuClass& gpu : site.gpus)
      if (gpu.name == name) text += "  GPU " + class_words(gpu) + "\n";
  text += "af: notes\n";
  for (const std::string& note : request.notes) text += "  " + note + "\n";
  return text;
}

}  // namespace af
