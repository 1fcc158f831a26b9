// SPDX-License-Identifier: Apache-2.0
#include "launcher/nccl_version.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <glob.h>

#include <filesystem>
#include <vector>

namespace af {
namespace {

std::string version_of_library(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  std::string text;
  int code = 0;
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(library, "ncclGetVersion"));
  if (get_version != nullptr && get_version(&code) == 0) text = nccl_version_text(code);
  ::dlclose(library);
  return text;
}

}  // namespace

std::string nccl_version_text(int code) {
  const int base = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / base, code % base / 100, code % 100);
}

std::string find_nccl_version(const std::string& program) {
  const std::filesystem::path prefix = std::filesystem::path(program).parent_path().parent_path();
  const std::string pattern =
      (prefix / "lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2").string();
  glob_t found{};
  std::vector<std::string> candidates;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    candidates.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  candidates.push_back("libnccl.so.2");
  for (const std::string& candidate : candidates) {
    std::string version = version_of_library(candidate);
    if (!version.empty()) return version;
  }
  return "";
}

}  // namespace af
