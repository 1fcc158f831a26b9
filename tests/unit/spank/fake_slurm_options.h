// SPDX-License-Identifier: Apache-2.0
// Slurm's options for tests without Slurm: a map.
#pragma once

#include <map>
#include <set>
#include <string>

#include "spank/slurm_options.h"

namespace af::spank {

class FakeSlurmOptions : public SlurmOptions {
 public:
  bool is_set(const std::string& name) const override { return values.contains(name); }
  bool is_from_environment(const std::string& name) const override {
    return from_environment.contains(name);
  }
  std::string get(const std::string& name) const override {
    const auto found = values.find(name);
    return found == values.end() ? "" : found->second;
  }
  bool set(const std::string& name, const std::string& value) override {
    if (unknown.contains(name)) return false;
    // Slurm shows a memory size in its own spelling.
    values[name] = name == "mem-per-gpu" && value == "32768M" ? "32G" : value;
    ++sets;
    return true;
  }
  void reset(const std::string& name) override { values.erase(name); }
  OptionSyntax syntax() const override { return {}; }

  std::map<std::string, std::string> values;
  std::set<std::string> from_environment, unknown;
  int sets = 0;
};

}  // namespace af::spank
