// SPDX-License-Identifier: Apache-2.0
// How this process was started, and so who it is: under af-launch, mpirun, srun, torchrun or alone.
#pragma once

#include <functional>
#include <string>

#include "af/communicator.h"

namespace af::perf {

using Environment = std::function<const char*(const char* name)>;

// Fills rank and world size of a plain srun (with PMIx: also the mpi backend) in where
// Communicator::options_from_environment() found a world of one. Pure.
Options with_slurm_step(Options options, const Environment& environment);

// True if the ranks have no store though their backend needs one: a directory has to do.
bool needs_store(const Options& options);

}  // namespace af::perf
