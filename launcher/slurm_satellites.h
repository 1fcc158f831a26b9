// SPDX-License-Identifier: Apache-2.0
// The coordinator's satellites as Slurm jobs: the pool, the commands, and the anchor's end.
#pragma once

#include <asio/io_context.hpp>
#include <memory>

#include "launcher/coordinator.h"
#include "launcher/journal.h"
#include "launcher/output_writer.h"
#include "launcher/satellite_submission.h"

namespace af {

// `facts.inherited`: of the anchor's task. Everything runs in the loop of `io`; the returned object
// may go as soon as the loop has ended.
std::unique_ptr<Satellites> slurm_satellites(asio::io_context& io, OutputWriter& writer,
                                             Journal& journal, SatelliteFacts facts);

}  // namespace af
