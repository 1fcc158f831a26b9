// SPDX-License-Identifier: Apache-2.0
#include "af/train/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "train/checkpoint_manifest.h"

namespace af::train {

namespace fs = std::filesystem;

namespace {

constexpr char kPrefix[] = "step-";
constexpr char kWriting[] = ".writing-";

std::string name_of_step(int64_t step) {
  return fmt::format("{}{:012}", kPrefix, step);
}

std::optional<int64_t> step_of_name(const std::string& name) {
  constexpr size_t prefix = sizeof kPrefix - 1;
  if (name.compare(0, prefix, kPrefix) != 0) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix, end, step);
  if (error != std::errc() || stop != end || name != name_of_step(step)) return std::nullopt;
  return step;
}

void fsync_path(const fs::path& path, int flags) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!fd) throw errno_error("cannot open " + path.string());
  if (::fsync(fd.get()) != 0) throw errno_error("cannot fsync " + path.string());
}

void fsync_tree(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    fsync_path(entry.path(), entry.is_directory() ? O_DIRECTORY : 0);
  fsync_path(directory, O_DIRECTORY);
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

// Puts `fresh` at `final`, which may be there already: then the two names are exchanged, and the
// old one, now under the temporary name, is for the caller to remove.
void move_into_place(const fs::path& fresh, const fs::path& final) {
  if (::rename(fresh.c_str(), final.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST)
    throw errno_error("cannot rename " + fresh.string() + " to " + final.string());
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  // NFS cannot exchange. The older checkpoints cover the moment in which neither name is there.
  const fs::path aside = fresh.string() + "-old";
  if (::rename(final.c_str(), aside.c_str()) != 0 || ::rename(fresh.c_str(), final.c_str()) != 0)
    throw errno_error("cannot replace " + final.string());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
}

std::optional<std::string> fault(const Checkpoint& checkpoint, Depth depth) {
  try {
    verify_manifest(checkpoint.path, checkpoint.step, depth);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

void warn_on_stderr(const std::string& line) {
  fprintf(stderr, "af: %s\n", line.c_str());
}

std::optional<std::string> fault_of_checkpoint(const Checkpoint& checkpoint) {
  return fault(checkpoint, Depth::kChecksums);
}

CheckpointDirectory::CheckpointDirectory(fs::path root, int keep, Warn warn)
    : root_(std::move(root)), keep_(keep), warn_(std::move(warn)) {
  if (keep < 1) throw Error::format("checkpoints in {}: cannot keep {}", root_.string(), keep);
}

Checkpoint CheckpointDirectory::save(int64_t step,
                                     const std::function<void(const fs::path&)>& write) const {
  if (step < 0) throw Error::format("checkpoint in {}: step {}", root_.string(), step);
  std::error_code error;
  fs::create_directories(root_, error);
  if (error) throw Error::format("cannot make {}: {}", root_.string(), error.message());
  const fs::path final = root_ / name_of_step(step);
  // mkdir and not mkdtemp: its 0700 would lock colleagues and other jobs out for good.
  const fs::path fresh = root_ / fmt::format("{}{}-{}", kWriting, name_of_step(step), ::getpid());
  fs::remove_all(fresh, error);
  if (::mkdir(fresh.c_str(), 0777) != 0) throw errno_error("cannot make " + fresh.string());
  try {
    write(fresh);
    write_file_atomically(fresh / kManifestName, manifest_of(fresh, step));
    fsync_tree(fresh);
    move_into_place(fresh, final);
  } catch (const fs::filesystem_error& failure) {
    fs::remove_all(fresh, error);
    throw Error::format("cannot write the checkpoint {}: {}", final.string(), failure.what());
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
  fs::remove_all(fresh, error);  // what an exchange left there
  fsync_path(root_, O_DIRECTORY);
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

void CheckpointDirectory::prune(int64_t newest) const {
  // Sizes only: to read every byte of the older ones at each save would be dear. What has no
  // manifest is not ours to remove, whatever its name.
  std::error_code ignored;
  int kept = 0;
  for (const Checkpoint& one : list(root_)) {
    if (one.step > newest || !fs::exists(one.path / kManifestName, ignored)) continue;
    if (kept < keep_ && !fault(one, Depth::kSizes))
      ++kept;
    else
      fs::remove_all(one.path, ignored);
  }
  for (const auto& entry : fs::directory_iterator(root_, ignored))
    if (entry.path().filename().string().rfind(kWriting, 0) == 0)
      fs::remove_all(entry.path(), ignored);
}

}  // namespace af::train
