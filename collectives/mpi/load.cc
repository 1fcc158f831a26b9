// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi/load.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace af {
namespace {

constexpr const char* kModule = "libaf_collectives_mpi.so";

[[noreturn]] void fail(const std::string& why) {
  throw CommunicatorError(CommunicatorError::Kind::system, "mpi backend: " + why);
}

// The directory of the library (or program) that holds this code.
std::filesystem::path own_directory() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&open_mpi_transport), &info) || !info.dli_fname) return {};
  return std::filesystem::absolute(info.dli_fname).parent_path();
}

void* load() {
  // Open MPI 4 loads plugins that expect its symbols to be global (RTLD_LOCAL: "undefined symbol").
  constexpr int kFlags = RTLD_NOW | RTLD_GLOBAL;
  const std::filesystem::path beside = own_directory() / kModule;
  std::error_code ignored;
  const std::string path = std::filesystem::exists(beside, ignored) ? beside.string() : kModule;
  if (void* handle = dlopen(path.c_str(), kFlags)) return handle;
  const char* reason = dlerror();
  fail(std::string("cannot load ") + path + ": " + (reason ? reason : "unknown reason") +
       "; is an MPI installed, and was af built with it?");
}

}  // namespace

std::unique_ptr<MpiTransport> open_mpi_transport() {
  static void* const module = load();  // never unloaded: MPI does not survive that
  auto open = reinterpret_cast<MpiModuleOpen>(dlsym(module, kMpiModuleEntry));
  if (!open) fail(std::string(kModule) + " has no entry point: it is from another version of af");
  try {
    return std::unique_ptr<MpiTransport>(open());
  } catch (const CommunicatorError&) {
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

}  // namespace af
