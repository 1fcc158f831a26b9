// SPDX-License-Identifier: Apache-2.0
#include "launcher/mpi_bootstrap.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "common/error.h"
#include "launcher/mpi/module.h"

namespace af {
namespace {

std::string default_module_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "lib" / "libaf_mpi_bootstrap.so").string();
}

// What a PMI server gives its clients. Without one Open MPI does not return from MPI_Init with an
// error: it prints two screens and ends the process, or makes N worlds of one.
bool has_pmi_server() {
  for (const char* name :
       {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "OMPI_COMM_WORLD_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

class MpiBootstrap : public Bootstrap {
 public:
  MpiBootstrap(int task, int tasks, decltype(&af_mpi_all_gather_v1) function)
      : task_(task), tasks_(tasks), all_gather_(function) {}

  std::string name() const override { return "mpi"; }

  std::vector<std::string> all_gather(const std::string& mine) override {
    if (!has_pmi_server())
      throw Error::format(
          "task {} of {} has no PMI server, so MPI cannot start: use srun --mpi=pmix, or have af "
          "do "
          "without MPI (--bootstrap=tcp)",
          task_, tasks_);
    char* all = nullptr;
    char error[1024] = "";
    std::vector<size_t> lengths(static_cast<size_t>(tasks_));
    if (all_gather_(task_, tasks_, mine.data(), mine.size(), &all, lengths.data(), error,
                    sizeof(error)) != 0)
      throw Error(error);
    std::vector<std::string> texts;
    const char* at = all;
    for (const size_t length : lengths) {
      texts.emplace_back(at, length);
      at += length;
    }
    std::free(all);
    return texts;
  }

 private:
  int task_, tasks_;
  decltype(&af_mpi_all_gather_v1) all_gather_;
};

}  // namespace

std::unique_ptr<Bootstrap> make_mpi_bootstrap(int task, int tasks, const std::string& module_path) {
  const std::string path = module_path.empty() ? default_module_path() : module_path;
  // RTLD_LOCAL: MPI's symbols must not be found by anything else that this process loads. Open
  // MPI's plugins find them through their own dependency on libmpi.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error::format("cannot load the MPI bootstrap: {}", ::dlerror());
  void* symbol = ::dlsym(library, "af_mpi_all_gather_v1");
  if (symbol == nullptr)
    throw Error::format("{} is not this version's MPI bootstrap: {}", path, ::dlerror());
  return std::make_unique<MpiBootstrap>(task, tasks,
                                        reinterpret_cast<decltype(&af_mpi_all_gather_v1)>(symbol));
}

}  // namespace af
