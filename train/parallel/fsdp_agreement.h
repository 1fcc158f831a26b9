// SPDX-License-Identifier: Apache-2.0
// What all ranks of a sharded model have to agree on, or to hear of.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "af/communicator.h"

namespace af::train {

// `values` of every rank, rank r's at r. Collective; as many values on all ranks.
std::vector<std::vector<int64_t>> gather_numbers(Communicator& world,
                                                 const std::vector<int64_t>& values,
                                                 at::Device device);

// Collective: throws af::Error on all ranks, naming those that differ from rank 0 and the first
// line of rank 0 that they have not got, unless all have the same lines. `what`: "other units".
void require_same_lines(Communicator& world, const std::vector<std::string>& lines,
                        const std::string& what, at::Device device);

// Collective: an error text of one rank becomes an af::Error on all of them ("rank 2: …"; of
// several, the lowest rank's). Empty: none here.
void share_error(Communicator& world, const std::string& error, at::Device device);

}  // namespace af::train
