// SPDX-License-Identifier: Apache-2.0
#include "launcher/mpi/module.h"

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

// The cheapest transports that work everywhere: from 0.4 s down to 0.2 s for MPI_Init here. Open
// MPI would otherwise try UCX and libfabric, which open devices and register memory that our later
// forks must not inherit. What the person or the site has set stays.
void choose_transports() {
  const auto set = [](const char* name, const char* value) { ::setenv(name, value, 0); };
  set("OMPI_MCA_pml", "ob1");
  set("OMPI_MCA_btl", "self,vader,tcp");
  // process_vm_readv is forbidden in many containers and by yama, and then costs a warning a rank.
  set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  // Bridges of containers have the same address on every node: connecting to them never ends.
  if (::getenv("OMPI_MCA_btl_tcp_if_include") == nullptr)
    set("OMPI_MCA_btl_tcp_if_exclude", "127.0.0.0/8,docker0,virbr0,podman0,cni0");
  // Two small all-gathers need no clever algorithms. libnbc has to be there: MPI_Init fails without
  // a component that offers the non-blocking collectives.
  set("OMPI_MCA_coll", "self,basic,libnbc");
}

int fail(char* error, size_t length, const char* what, int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int used = 0;
  MPI_Error_string(code, text, &used);
  std::snprintf(error, length, "%s: %s", what, text);
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int af_mpi_all_gather_v1(
    int task, int tasks, const char* mine, size_t mine_length, char** all, size_t* lengths,
    char* error, size_t error_length) {
  *all = nullptr;
  choose_transports();
  int code = MPI_Init(nullptr, nullptr);
  if (code != MPI_SUCCESS) return fail(error, error_length, "MPI_Init failed", code);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);

  int size = 0, rank = -1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (size != tasks || rank != task) {
    std::snprintf(error, error_length,
                  "MPI says this is rank %d of %d, Slurm says task %d of %d: srun and MPI do not "
                  "speak the same PMI; start with srun --mpi=pmix, or have af do without MPI "
                  "(--bootstrap=tcp)",
                  rank, size, task, tasks);
    // No finalize in a world of another size: the others wait for a barrier that never comes. A
    // world of one is nobody's, and leaving it properly keeps Open MPI quiet at exit.
    if (size == 1) MPI_Finalize();
    return 1;
  }

  const int count = static_cast<int>(mine_length);
  std::vector<int> counts(size), offsets(size);
  code = MPI_Allgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) return fail(error, error_length, "MPI_Allgather failed", code);
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  const size_t total = static_cast<size_t>(offsets.back()) + static_cast<size_t>(counts.back());
  char* texts = static_cast<char*>(std::malloc(total + 1));
  if (texts == nullptr) {
    std::snprintf(error, error_length, "no memory for %zu bytes", total);
    return 1;
  }
  code = MPI_Allgatherv(mine, count, MPI_CHAR, texts, counts.data(), offsets.data(), MPI_CHAR,
                        MPI_COMM_WORLD);
  // Nobody may start ranks while another is still inside MPI: a rank that dies early would take the
  // step with it through PMIx.
  if (code == MPI_SUCCESS) code = MPI_Barrier(MPI_COMM_WORLD);
  if (code == MPI_SUCCESS) code = MPI_Finalize();
  if (code != MPI_SUCCESS) {
    std::free(texts);
    return fail(error, error_length, "MPI_Allgatherv, MPI_Barrier or MPI_Finalize failed", code);
  }
  for (int i = 0; i < size; ++i) lengths[i] = static_cast<size_t>(counts[i]);
  *all = texts;
  return 0;
}
