// SPDX-License-Identifier: Apache-2.0
// Finds and loads libaf_collectives_mpi.so.
#pragma once

#include <memory>

#include "collectives/mpi/transport.h"

namespace af {

// Looks beside libaf_collectives.so, then in the loader's path. Throws CommunicatorError (system),
// with what to do, if the module or its libmpi is not there or MPI does not start.
std::unique_ptr<MpiTransport> open_mpi_transport();

}  // namespace af
