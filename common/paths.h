// SPDX-License-Identifier: Apache-2.0
// Checks at submit that a job will find its paths on its nodes: a job whose output directory is not
// there dies in 35 ms without a log (case B31), and a missing environment only shows in the queue's
// other end. File access is behind FileView, so that tests are tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/site.h"

namespace af {

class FileView {
 public:
  virtual ~FileView() = default;
  virtual bool exists(const std::string& path) const = 0;
  virtual bool is_directory(const std::string& path) const = 0;
  virtual bool is_writable(const std::string& path) const = 0;
  // Symbolic links resolved as far as the path exists.
  virtual std::string real_path(const std::string& path) const = 0;
};

// The file system of this machine, as this process's effective user sees it.
const FileView& real_file_view();

// Absolute and without "." and "..": `path` as seen from `directory`. Links are not resolved.
std::string absolute_path(std::string_view path, std::string_view directory);

// Whether jobs see `path`, by the site's lists: the longest entry that it lies below decides. What
// is in neither list is seen only if the site lists no jobs_see at all.
bool jobs_see(const Storage& storage, std::string_view path);

// The environment (af-env), an absolute path: a prefix with bin/, on storage that jobs see. Throws
// Error.
void check_env_prefix(const std::string& prefix, const Storage& storage, const FileView& files);

// What sbatch was told; "" = not given.
struct JobPaths {
  std::string submit_directory;  // absolute
  std::string chdir, output, error;
  // Whether the job writes output files at all (sbatch yes; srun and salloc only if told).
  bool batch = true;
};
// Paths below /tmp, /var/tmp and /dev are each node's own and pass.
// Output, error and working directory exist, can be written (the first two) and are on storage that
// jobs see. Slurm's patterns (%j, %A, …) in a directory's name end the check at that directory.
// Throws Error naming option, path and the storage that jobs see.
void check_job_paths(const JobPaths& paths, const Storage& storage, const FileView& files);

}  // namespace af
