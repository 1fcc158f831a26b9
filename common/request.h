// SPDX-License-Identifier: Apache-2.0
// The decision of the plugin: settings + site + what the person asked natively -> the Slurm
// request. Pure: nothing here asks Slurm. The SPANK plugin applies the result with
// slurm_option_set().
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/settings.h"
#include "common/site.h"

namespace af {

// Which program the options were given to: the words and a few options differ.
enum class Tool { kSbatch, kSrun, kSalloc };
const char* tool_name(Tool tool);

// What the person asked Slurm for, by long option name without dashes ("partition", "gres"),
// whatever the source. Only what is set and is not what af itself set last.
struct NativeOptions {
  Tool tool = Tool::kSbatch;
  std::map<std::string, std::string, std::less<>> set;

  // "" if the person did not give it.
  std::string get(std::string_view name) const;
};

// Long names of the native options that build_request() wants to know about. Some do not exist in
// every tool or Slurm version: leave out what slurm_option_get() does not know.
std::span<const char* const> native_options_of_interest();

struct SlurmOption {
  std::string name;   // long option: "gpus-per-task"
  std::string value;  // "t4:1"
  bool operator==(const SlurmOption&) const = default;
};

struct Request {
  int workers = 1;                      // tasks of this job
  std::vector<SlurmOption> options;     // to set, in this order; what the person has is not here
  std::vector<std::string> classes;     // names of the GPU classes that can serve it
  std::vector<std::string> partitions;  // where it would run ("" = Slurm's default)
  std::vector<std::string> notes;       // for --af-explain: decisions in words
};

// Throws Error in words for what cannot be served or contradicts.
Request build_request(const Settings& settings, const Site& site, const NativeOptions& native);

// One-line refusals that the effects need.
std::string heterogeneous_job_message();
std::string disabled_message(const Site& site);

}  // namespace af
