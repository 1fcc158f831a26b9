// SPDX-License-Identifier: Apache-2.0
// The command line of the example.
#pragma once

#include <cstdint>
#include <string>

#include "examples/cpp/gpt/model.h"

namespace gpt {

struct Options {
  std::string text = "examples/data/stories.txt";
  std::string checkpoints;  // empty: none
  std::string from;         // checkpoints of another training: where this one begins
  std::string prompt = "One ";
  int64_t epochs = 16;
  int64_t batch = 32;  // pieces in a step, over all ranks: the same training at every world size
  double learning_rate = 4e-3;
  int64_t warmup = 20;  // steps
  uint64_t seed = 1;
  int threads = 1;
  Shape shape;
};

// Ends the program after --help or a wrong option, as CLI11 does.
Options parse_options(int argc, char** argv);

}  // namespace gpt
