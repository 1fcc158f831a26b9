// SPDX-License-Identifier: Apache-2.0
#include "spank/environment_activation.h"

namespace af::spank {

std::vector<std::pair<std::string, std::string>> activation(const std::string& prefix,
                                                            const std::string& path,
                                                            const FileView& files) {
  std::vector<std::pair<std::string, std::string>> variables;
  const std::string bin = prefix + "/bin";
  const std::string before = path.empty() ? kDefaultPath : path;
  if (before != bin && !before.starts_with(bin + ":"))
    variables.emplace_back("PATH", bin + ":" + before);
  if (files.exists(prefix + "/pyvenv.cfg")) variables.emplace_back("VIRTUAL_ENV", prefix);
  if (files.is_directory(prefix + "/conda-meta")) variables.emplace_back("CONDA_PREFIX", prefix);
  return variables;
}

}  // namespace af::spank
