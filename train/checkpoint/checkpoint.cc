// SPDX-License-Identifier: Apache-2.0
#include "af/train/checkpoint.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "train/checkpoint/checkpoint_manifest.h"

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

std::optional<std::string> fault(const Checkpoint& checkpoint, Depth depth) {
  try {
    verify_manifest(checkpoint.path, checkpoint.step, depth);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string writer() {
  return fmt::format("{}-{}", host_name(), ::getpid());
}

// Whether whoever made this temporary directory may still be at work in it. A process of this host
// can be looked for; those of others are given an hour.
bool may_be_written(const fs::path& directory) {
  const std::string name = directory.filename().string();
  const std::string host = "-" + host_name() + "-";
  const size_t at = name.rfind(host);
  if (at != std::string::npos) {
    const pid_t pid = atoi(name.c_str() + at + host.size());
    return pid != ::getpid() && (::kill(pid, 0) == 0 || errno == EPERM);
  }
  std::error_code error;
  const auto touched = fs::last_write_time(directory, error);
  return !error && fs::file_time_type::clock::now() - touched < std::chrono::hours(1);
}

// What writers that died have left. Before a save, which may need the space.
void remove_left_behind(const fs::path& root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored))
    if (entry.path().filename().string().rfind(kWriting, 0) == 0 && !may_be_written(entry.path()))
      fs::remove_all(entry.path(), ignored);
}

// Under another name first: a checkpoint is there whole or not at all, also when the process is
// killed in the middle of this.
void remove_checkpoint(const Checkpoint& checkpoint) {
  const fs::path aside =
      checkpoint.path.parent_path() /
      fmt::format("{}old-{}-{}", kWriting, checkpoint.path.filename().string(), writer());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  if (::rename(checkpoint.path.c_str(), aside.c_str()) == 0) fs::remove_all(aside, ignored);
}

// Puts `fresh` at `final`, which may be there already: then the two names are exchanged, and the
// old one, now under the temporary name, is for the caller to remove.
void move_into_place(const fs::path& fresh, const fs::path& final, int64_t step) {
  if (::rename(fresh.c_str(), final.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST)
    throw errno_error("cannot rename " + fresh.string() + " to " + final.string());
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  // NFS cannot exchange. Between a removal and a rename neither name would be there, so a good
  // checkpoint stays: it is of the same step.
  if (!fault({final, step}, Depth::kChecksums)) return;
  remove_checkpoint({final, step});
  if (::rename(fresh.c_str(), final.c_str()) != 0)
    throw errno_error("cannot rename " + fresh.string() + " to " + final.string());
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

fs::path CheckpointDirectory::path_of(int64_t step) const {
  return root_ / name_of_step(step);
}

Checkpoint CheckpointDirectory::save(int64_t step,
                                     const std::function<void(const fs::path&)>& write) const {
  if (step < 0) throw Error::format("checkpoint in {}: step {}", root_.string(), step);
  std::error_code error;
  if (fs::create_directories(root_, error))
    fsync_path(fs::absolute(root_).parent_path(), O_DIRECTORY);
  if (error) throw Error::format("cannot make {}: {}", root_.string(), error.message());
  remove_left_behind(root_);
  const fs::path final = path_of(step);
  // mkdir and not mkdtemp: its 0700 would lock colleagues and other jobs out for good.
  const fs::path fresh = root_ / fmt::format("{}{}-{}", kWriting, name_of_step(step), writer());
  if (::mkdir(fresh.c_str(), 0777) != 0) throw errno_error("cannot make " + fresh.string());
  const auto fail = [&](const std::string& why) {
    fs::remove_all(fresh, error);
    return Error::format(
        "the checkpoint of step {} is not saved, and the older ones are as they "
        "were: {}",
        step, why);
  };
  try {
    write(fresh);
    write_file_atomically(fresh / kManifestName, manifest_of(fresh, step));
    fsync_tree(fresh);
    move_into_place(fresh, final, step);
    fs::remove_all(fresh, error);  // what an exchange left there
    fsync_path(root_, O_DIRECTORY);
  } catch (const fs::filesystem_error& failure) {
    throw fail(failure.what());
  } catch (const Error& failure) {
    throw fail(failure.what());
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
  // The new one is safe: that old ones stay is no reason to fail.
  try {
    prune(step);
  } catch (const std::exception& failure) {
    warn_(fmt::format("old checkpoints in {} are not removed: {}", root_.string(), failure.what()));
  }
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
      remove_checkpoint(one);
  }
}

}  // namespace af::train
