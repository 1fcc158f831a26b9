// SPDX-License-Identifier: Apache-2.0
#include "cli/site_lookup.h"

#include <cstdlib>
#include <filesystem>

namespace af::cli {

Site site_for_tools(const std::string& config) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path root = program.parent_path().parent_path();  // of PREFIX/bin/af or build/bin/af
  return load_site(find_site_file(config, std::getenv("AF_CONFIG"),
                                  {root / "etc/af.yaml", root.parent_path() / "etc/af.yaml",
                                   "/etc/af/af.yaml", "/etc/slurm/af.yaml"}));
}

}  // namespace af::cli
