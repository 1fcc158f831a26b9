// SPDX-License-Identifier: Apache-2.0
// A sharded model's and its optimizers' state to and from a full state.pt, unit by unit.
#pragma once

#include <cstdint>
#include <filesystem>

#include "af/train/checkpoint.h"
#include "af/train/state_file.h"

namespace af::train {

class FsdpRuntime;

// Collective; see FullyShardedDataParallel.
void save_sharded(FsdpRuntime& runtime, const std::filesystem::path& file, const State& more);
void save_sharded(FsdpRuntime& runtime, const CheckpointDirectory& directory, int64_t step,
                  const State& more);
State load_sharded(FsdpRuntime& runtime, const std::filesystem::path& file);

}  // namespace af::train
