// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint_writing.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/unique_fd.h"

namespace af::train {

namespace fs = std::filesystem;

namespace {

constexpr char kWriting[] = ".writing-";

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

// Puts `fresh` at `final`, which may be there already: then the two names are exchanged, and the
// old one, now under the temporary name, is for the caller to remove.
void move_into_place(const fs::path& fresh, const fs::path& final, int64_t step) {
  if (::rename(fresh.c_str(), final.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST)
    throw errno_error("cannot rename " + fresh.string() + " to " + final.string());
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  // NFS cannot exchange. Between a removal and a rename neither name would be there, so a good
  // checkpoint stays: it is of the same step.
  if (!fault_of({final, step}, Depth::kChecksums)) return;
  remove_checkpoint({final, step});
  if (::rename(fresh.c_str(), final.c_str()) != 0)
    throw errno_error("cannot rename " + fresh.string() + " to " + final.string());
}

}  // namespace

std::string name_of_step(int64_t step) {
  return fmt::format("{}{:012}", kStepPrefix, step);
}

std::string writing_name(int64_t step, int64_t attempt) {
  const std::string again = attempt > 0 ? fmt::format("-{}", attempt) : "";
  return fmt::format("{}{}{}-{}", kWriting, name_of_step(step), again, writer());
}

std::optional<std::string> fault_of(const Checkpoint& checkpoint, Depth depth) {
  try {
    verify_manifest(checkpoint.path, checkpoint.step, depth);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

void remove_left_behind(const fs::path& root, const fs::path& except) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored))
    if (entry.path() != except && entry.path().filename().string().rfind(kWriting, 0) == 0 &&
        !may_be_written(entry.path()))
      fs::remove_all(entry.path(), ignored);
}

void remove_checkpoint(const Checkpoint& checkpoint) {
  const fs::path aside =
      checkpoint.path.parent_path() /
      fmt::format("{}old-{}-{}", kWriting, checkpoint.path.filename().string(), writer());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  if (::rename(checkpoint.path.c_str(), aside.c_str()) == 0) fs::remove_all(aside, ignored);
}

void make_writing_directory(const fs::path& directory) {
  const fs::path root = directory.parent_path();
  std::error_code error;
  if (fs::create_directories(root, error))
    fsync_path(fs::absolute(root).parent_path(), O_DIRECTORY);
  if (error) throw Error::format("cannot make {}: {}", root.string(), error.message());
  fs::remove_all(directory, error);  // of this process, whose last try failed
  // mkdir and not mkdtemp: its 0700 would lock colleagues and other jobs out for good.
  if (::mkdir(directory.c_str(), 0777) != 0) throw errno_error("cannot make " + directory.string());
}

void complete_checkpoint(const fs::path& fresh, const fs::path& final, int64_t step,
                         const std::function<FileSums(const fs::path&)>& write) {
  std::error_code error;
  const auto fail = [&](const std::string& why) {
    fs::remove_all(fresh, error);
    return Error::format(
        "the checkpoint of step {} is not saved, and the older ones are as they "
        "were: {}",
        step, why);
  };
  try {
    const FileSums known = write(fresh);
    write_file_atomically(fresh / kManifestName, manifest_of(fresh, step, known));
    fsync_tree(fresh);
    move_into_place(fresh, final, step);
    fs::remove_all(fresh, error);  // what an exchange left there
    fsync_path(final.parent_path(), O_DIRECTORY);
  } catch (const fs::filesystem_error& failure) {
    throw fail(failure.what());
  } catch (const Error& failure) {
    throw fail(failure.what());
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
}

}  // namespace af::train
