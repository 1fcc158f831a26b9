// SPDX-License-Identifier: Apache-2.0
// The Bootstrap over MPI: MPI_Init, one all-gather, a barrier, MPI_Finalize, and MPI is never used
// again. libmpi is linked by a module (libaf_mpi_bootstrap.so) that is loaded only here, so
// af-launch runs on sites without MPI.
#pragma once

#include <memory>
#include <string>

#include "launcher/bootstrap.h"

namespace af {

// `module_path`: libaf_mpi_bootstrap.so; empty = ../lib beside the running program.
// `task`, `tasks`: what Slurm says (SLURM_PROCID, SLURM_NTASKS or SLURM_STEP_NUM_TASKS); all_gather
// throws Error if MPI's world differs. Throws Error if the module or libmpi cannot be loaded.
// all_gather changes this process's environment (OMPI_MCA_…, unless set): call it while the process
// has one thread; ranks must be started without PMIX_*, PMI_*, OMPI_*, PRTE_*, which stay behind.
std::unique_ptr<Bootstrap> make_mpi_bootstrap(int task, int tasks,
                                              const std::string& module_path = "");

}  // namespace af
