// SPDX-License-Identifier: Apache-2.0
#include "af/train/checkpoint.h"

#include <stdio.h>

#include <algorithm>
#include <charconv>

#include "common/error.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_writing.h"

namespace af::train {

namespace fs = std::filesystem;

namespace {

std::optional<int64_t> step_of_name(const std::string& name) {
  constexpr size_t prefix = sizeof kStepPrefix - 1;
  if (name.compare(0, prefix, kStepPrefix) != 0) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix, end, step);
  if (error != std::errc() || stop != end || name != name_of_step(step)) return std::nullopt;
  return step;
}

// Sorted, highest step first.
std::vector<Checkpoint> list(const fs::path& root) {
  std::vector<Checkpoint> found;
  if (!fs::exists(root)) return found;
  for (const auto& entry : fs::directory_iterator(root))
    if (const auto step = step_of_name(entry.path().filename().string()))
      found.push_back({entry.path(), *step});
  std::sort(found.begin(), found.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.step > b.step; });
  return found;
}

}  // namespace

void warn_on_stderr(const std::string& line) {
  fprintf(stderr, "af: %s\n", line.c_str());
}

std::optional<std::string> fault_of_checkpoint(const Checkpoint& checkpoint) {
  return fault_of(checkpoint, Depth::kChecksums);
}

CheckpointDirectory::CheckpointDirectory(fs::path root, int keep, Warn warn)
    : root_(std::move(root)), keep_(keep), warn_(std::move(warn)) {
  if (keep < 1) throw Error::format("checkpoints in {}: cannot keep {}", root_.string(), keep);
}

fs::path CheckpointDirectory::path_of(int64_t step) const {
  return root_ / name_of_step(step);
}

Checkpoint CheckpointDirectory::save(int64_t step,
                                     const std::function<void(const fs::path&)>& write) const {
  if (step < 0) throw Error::format("checkpoint in {}: step {}", root_.string(), step);
  const fs::path fresh = root_ / writing_name(step);
  remove_left_behind(root_, {});
  make_writing_directory(fresh);
  const fs::path final = path_of(step);
  complete_checkpoint(fresh, final, step, [&](const fs::path& directory) {
    write(directory);
    return FileSums();
  });
  prune(step);
  return {final, step};
}

std::optional<Checkpoint> CheckpointDirectory::find_newest() const {
  try {
    for (const Checkpoint& candidate : list(root_)) {
      const auto fault = fault_of_checkpoint(candidate);
      if (!fault) return candidate;
      warn_(fmt::format("checkpoint {} is skipped: {}", candidate.path.string(), *fault));
    }
  } catch (const fs::filesystem_error& failure) {
    throw Error::format("cannot read the checkpoints in {}: {}", root_.string(), failure.what());
  }
  return std::nullopt;
}

// The new one is safe: that old ones stay is no reason to fail.
void CheckpointDirectory::prune(int64_t newest) const {
  try {
    remove_old(newest);
  } catch (const std::exception& failure) {
    warn_(fmt::format("old checkpoints in {} are not removed: {}", root_.string(), failure.what()));
  }
}

void CheckpointDirectory::warn(const std::string& line) const {
  warn_(line);
}

void CheckpointDirectory::remove_old(int64_t newest) const {
  // Sizes only: to read every byte of the older ones at each save would be dear. What has no
  // manifest is not ours to remove, whatever its name.
  std::error_code ignored;
  int kept = 0;
  for (const Checkpoint& one : list(root_)) {
    if (one.step > newest || !fs::exists(one.path / kManifestName, ignored)) continue;
    if (kept < keep_ && !fault_of(one, Depth::kSizes))
      ++kept;
    else
      remove_checkpoint(one);
  }
}

}  // namespace af::train
