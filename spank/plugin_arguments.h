// SPDX-License-Identifier: Apache-2.0
// What follows the plugin's path in plugstack.conf: `optional /opt/af/…/spank_af.so config=PATH`.
#pragma once

#include <string>
#include <vector>

namespace af::spank {

struct PluginArguments {
  std::string config;                 // the site file; "" = the first of the usual places
  std::vector<std::string> mistakes;  // arguments that mean nothing, in words
};

// Never throws on what stands there: a typo in plugstack.conf must not stop plain commands, so the
// mistakes are kept and reported to whoever uses an af option.
PluginArguments parse_plugin_arguments(int argc, const char* const* argv);

}  // namespace af::spank
