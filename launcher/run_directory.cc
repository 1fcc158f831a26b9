// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "launcher/challenge.h"

namespace af {
namespace fs = std::filesystem;
namespace {

constexpr int kMostLaunchesOfAJob = 1000;

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw Error::format(
        "cannot make the run directory {}: {}; choose one on storage that the nodes can write with "
        "--run-dir",
        path.string(), error.message());
}

// True if this launch is the first of the attempt to claim the directory.
bool claim(const fs::path& path, int attempt) {
  make_directories(path);
  const std::string marker = (path / fmt::format(".attempt-{}", attempt)).string();
  UniqueFd fd(::open(marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (fd) return true;
  if (errno == EEXIST) return false;
  throw errno_error("cannot write in the run directory " + path.string());
}

}  // namespace

fs::path RunDirectory::logs(int attempt) const {
  return path / "logs" / fmt::format("attempt-{}", attempt) / fmt::format("gen-{}", generation);
}

fs::path RunDirectory::rank_log(int attempt, int rank) const {
  return logs(attempt) / fmt::format("rank-{}.log", rank);
}

RunDirectory create_run_directory(const fs::path& base, const std::string& asked,
                                  const std::string& run_id, int attempt) {
  RunDirectory directory;
  if (!asked.empty()) {
    directory.path = (base / asked).lexically_normal();
    // Used again in the same attempt: the next generation, so that no log is mixed or lost.
    if (!claim(directory.path, attempt))
      while (fs::exists(directory.logs(attempt))) ++directory.generation;
  } else {
    for (int launch = 0;; ++launch) {
      if (launch == kMostLaunchesOfAJob)
        throw Error::format("{} has {} run directories of this attempt already",
                            (base / "af-runs").string(), launch);
      directory.path =
          base / "af-runs" / (launch == 0 ? run_id : fmt::format("{}.{}", run_id, launch));
      if (claim(directory.path, attempt)) break;
    }
  }
  make_directories(directory.logs(attempt));
  make_directories(directory.checkpoints());
  return directory;
}

std::string create_secret(const RunDirectory& directory) {
  struct stat status {};
  if (::stat(directory.secret().c_str(), &status) != 0)
    write_file_atomically(directory.secret(), random_hex(32), 0600);
  return read_secret(directory);
}

std::string read_secret(const RunDirectory& directory) {
  struct stat status {};
  const std::string path = directory.secret().string();
  if (::stat(path.c_str(), &status) != 0) throw errno_error("cannot read the run's secret " + path);
  if ((status.st_mode & 077) != 0)
    throw Error::format("others may read the run's secret {}: chmod 600 it, or delete it", path);
  return read_file(directory.secret());
}

}  // namespace af
