// SPDX-License-Identifier: Apache-2.0
// What the person asked Slurm for beside af's options, and which of it contradicts them. Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "common/site.h"

namespace af {

// Which program the options were given to: the words and a few options differ.
enum class Tool { kSbatch, kSrun, kSalloc };
const char* tool_name(Tool tool);

// By long option name without dashes ("partition", "gres"), whatever the source. Only what is set
// and is not what af itself set last.
struct NativeOptions {
  Tool tool = Tool::kSbatch;
  std::map<std::string, std::string, std::less<>> set;

  // "" if the person did not give it.
  std::string get(std::string_view name) const;
};

// Long names of the native options that af wants to know about: those that it refuses and those
// that it keeps and shows. Some do not exist in every tool or Slurm version: leave out what
// slurm_option_get() does not know. The site's `conflicts.refuse` comes on top.
std::span<const char* const> native_options_of_interest();

// Throws Error for the first option that asks for what af asks for itself (the words name the af
// setting to use) or that the site refuses.
void refuse_contradictions(const NativeOptions& native, const Site& site);

// Of "--nodes": "3", "3-5", "3-3"; 0 where it says nothing.
struct NodeRange {
  int min = 0;
  int max = 0;
};
NodeRange parse_node_range(std::string_view nodes);

}  // namespace af
