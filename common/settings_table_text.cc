// SPDX-License-Identifier: Apache-2.0
#include "common/settings_table_text.h"

#include <fmt/format.h>

namespace af {
namespace {

std::string option_text(const SettingSpec& spec) {
  return fmt::format("--{}{}{}", spec.name, *spec.argument ? "=" : "", spec.argument);
}

std::string default_text(const SettingSpec& spec, const SettingLimits& limits) {
  const SettingLimit& limit = limits.of[static_cast<std::size_t>(spec.id)];
  if (spec.type == SettingType::kInteger && limit.fallback) return std::to_string(*limit.fallback);
  if (spec.id == SettingId::kEnv && !limits.default_env.empty()) return limits.default_env;
  return spec.default_words;
}

}  // namespace

std::string range_text(const SettingSpec& spec, const SettingLimit& limit) {
  switch (spec.type) {
    case SettingType::kFlag:
      return "no value";
    case SettingType::kPath:
      return "a path on storage that jobs see";
    case SettingType::kInteger:
      break;
  }
  // The largest GPU is the site's: the table that is shipped does not know it.
  if (spec.id == SettingId::kMinGpuMemoryGb && limit.max >= kNoLimit)
    return "up to the largest the site has";
  if (limit.max >= kNoLimit) return fmt::format("{} or more", limit.min);
  if (limit.max == limit.min) return std::to_string(limit.min);
  if (limit.max == limit.min + 1) return fmt::format("{} or {}", limit.min, limit.max);
  return fmt::format("{} to {}", limit.min, limit.max);
}

std::string settings_text(const SettingLimits& limits) {
  std::string text = fmt::format("{:<28}{:<22}{:<12}{:<33}{}\n", "option", "environment", "default",
                                 "range", "meaning");
  for (const SettingSpec& spec : settings_table())
    text += fmt::format("{:<28}{:<22}{:<12}{:<33}{}\n", option_text(spec), spec.env_name,
                        default_text(spec, limits),
                        range_text(spec, limits.of[static_cast<std::size_t>(spec.id)]), spec.help);
  return text;
}

std::string settings_markdown() {
  const SettingLimits shipped;
  std::string text =
      "| option | environment | default | range | meaning |\n|---|---|---|---|---|\n";
  for (const SettingSpec& spec : settings_table())
    text += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", option_text(spec), spec.env_name,
                        default_text(spec, shipped),
                        range_text(spec, shipped.of[static_cast<std::size_t>(spec.id)]), spec.help);
  return text;
}

}  // namespace af
