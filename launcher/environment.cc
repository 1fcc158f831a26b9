// SPDX-License-Identifier: Apache-2.0
#include "launcher/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace af {

Environment current_environment() {
  Environment environment;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::vector<std::string> environment_strings(const Environment& environment) {
  std::vector<std::string> strings;
  strings.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    std::string& text = strings.emplace_back(name);
    text.append("=").append(value);
  }
  return strings;
}

std::string value_or(const Environment& environment, const std::string& name,
                     const std::string& missing) {
  const auto found = environment.find(name);
  return found == environment.end() ? missing : found->second;
}

long number_or(const Environment& environment, const std::string& name, long missing) {
  const auto found = environment.find(name);
  if (found == environment.end()) return missing;
  const std::string& text = found->second;
  long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= 0 ? number : missing;
}

void erase_prefix(Environment& environment, std::string_view prefix) {
  auto entry = environment.lower_bound(std::string(prefix));
  while (entry != environment.end() && entry->first.starts_with(prefix))
    entry = environment.erase(entry);
}

Environment merge_environment(Environment run, const Environment& here) {
  constexpr const char* kPrefixes[] = {"SLURM", "SPANK_", "PMIX_", "PMI_", "OMPI_", "PRTE_"};
  constexpr const char* kNames[] = {"CUDA_VISIBLE_DEVICES",
                                    "GPU_DEVICE_ORDINAL",
                                    "ROCR_VISIBLE_DEVICES",
                                    "ZE_AFFINITY_MASK",
                                    "HOSTNAME",
                                    "TMPDIR",
                                    "XDG_RUNTIME_DIR",
                                    "AF_SRUN_FRONT_PID",
                                    "AF_SHIELD_STEPD_PID",
                                    "KRB5CCNAME",
                                    "DISPLAY"};
  for (const char* prefix : kPrefixes) erase_prefix(run, prefix);
  for (const char* name : kNames) run.erase(name);
  for (const auto& [name, value] : here) {
    const auto begins = [&name](const char* prefix) { return name.starts_with(prefix); };
    const auto is = [&name](const char* other) { return name == other; };
    if (std::any_of(std::begin(kPrefixes), std::end(kPrefixes), begins) ||
        std::any_of(std::begin(kNames), std::end(kNames), is))
      run[name] = value;
  }
  return run;
}

}  // namespace af
