// SPDX-License-Identifier: Apache-2.0
// The command line of the example.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace digits {

struct Options {
  std::string data = "examples/data/digits.h5";
  std::string checkpoints;  // empty: no checkpoints
  int64_t epochs = 16;
  int64_t batch = 64;           // over all ranks: the same training at every world size
  double learning_rate = 4e-3;  // in the first epoch; it falls to nothing
  uint64_t seed = 1;
  int keep = 2;
  int threads = 1;
  // As if a rank alone needed so long for a batch, so that there is something to watch.
  std::chrono::milliseconds work{0};
};

// Ends the program after --help or a wrong option, as CLI11 does.
Options parse_options(int argc, char** argv);

}  // namespace digits
