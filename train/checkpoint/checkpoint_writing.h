// SPDX-License-Identifier: Apache-2.0
// How a checkpoint comes to its place: written under a temporary name, made durable, renamed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "af/train/checkpoint.h"
#include "train/checkpoint/checkpoint_manifest.h"

namespace af::train {

inline constexpr char kStepPrefix[] = "step-";
std::string name_of_step(int64_t step);
// ".writing-step-000000000420-HOST-PID", with another number for each try where one may follow
// another too soon.
std::string writing_name(int64_t step, int64_t attempt = 0);

std::optional<std::string> fault_of(const Checkpoint& checkpoint, Depth depth);

// Makes it and what it lies in. Throws af::Error with the path.
void make_writing_directory(const std::filesystem::path& directory);
// What writers that died have left. Before a save, which may need the space.
void remove_left_behind(const std::filesystem::path& root, const std::filesystem::path& except);
// Under another name first: a checkpoint is there whole or not at all, also when the process is
// killed in the middle of this.
void remove_checkpoint(const Checkpoint& checkpoint);

// Calls write(fresh), which returns the sums of those files whose sums it knows; then `fresh` is
// made a good checkpoint at `final`. Throws af::Error, and what else `write` throws; then nothing
// of it is left.
void complete_checkpoint(const std::filesystem::path& fresh, const std::filesystem::path& final,
                         int64_t step,
                         const std::function<FileSums(const std::filesystem::path&)>& write);

}  // namespace af::train
