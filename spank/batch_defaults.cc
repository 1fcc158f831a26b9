// SPDX-License-Identifier: Apache-2.0
#include "spank/batch_defaults.h"

#include <cctype>

namespace af::spank {

bool names_one_job(const std::string& pattern) {
  if (pattern.empty()) return true;
  if (pattern.find('\\') != pattern.npos) return false;  // Slurm then replaces nothing
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '%') continue;
    if (pattern[++i] == '%') continue;
    while (i < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[i]))) ++i;
    if (i < pattern.size() && std::string("jJA").find(pattern[i]) != std::string::npos) return true;
  }
  return false;
}

std::vector<SlurmOption> batch_defaults(const SlurmOptions& slurm) {
  std::vector<SlurmOption> defaults;
  if (!slurm.is_set("requeue") && !slurm.is_set("no-requeue")) defaults.push_back({"requeue", ""});
  const auto own_file = [&](const char* name) {
    return !slurm.is_set(name) || names_one_job(slurm.get(name));
  };
  if (!slurm.is_set("open-mode") && own_file("output") && own_file("error"))
    defaults.push_back({"open-mode", "append"});
  return defaults;
}

}  // namespace af::spank
