// SPDX-License-Identifier: Apache-2.0
#include "spank/plugin_arguments.h"

#include <fmt/core.h>

#include <string_view>

namespace af::spank {

PluginArguments parse_plugin_arguments(int argc, const char* const* argv) {
  constexpr std::string_view kConfig = "config=";
  PluginArguments arguments;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with(kConfig) && word.size() > kConfig.size()) {
      arguments.config = word.substr(kConfig.size());
    } else {
      arguments.mistakes.push_back(fmt::format(
          "plugstack.conf gives the af plugin '{}', which means nothing to it (it knows "
          "config=PATH); tell the administrators",
          word));
    }
  }
  return arguments;
}

}  // namespace af::spank
