// SPDX-License-Identifier: Apache-2.0
#include "common/paths.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common/error.h"

namespace af {
namespace {

namespace fs = std::filesystem;

class RealFileView : public FileView {
 public:
  bool exists(const std::string& path) const override {
    std::error_code error;
    return fs::exists(path, error);
  }
  bool is_directory(const std::string& path) const override {
    std::error_code error;
    return fs::is_directory(path, error);
  }
  bool is_writable(const std::string& path) const override {
    return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
  }
  std::string real_path(const std::string& path) const override {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    return error ? path : real.string();
  }
};

bool is_below(std::string_view path, std::string_view directory) {
  while (directory.size() > 1 && directory.ends_with('/')) directory.remove_suffix(1);
  if (directory == "/") return true;
  return path == directory || (path.starts_with(directory) && path.size() > directory.size() &&
                               path[directory.size()] == '/');
}

// Length of the longest entry that `path` lies below; 0 if none.
std::size_t longest_match(const std::vector<std::string>& entries, std::string_view path) {
  std::size_t longest = 0;
  for (const std::string& entry : entries)
    if (is_below(path, entry)) longest = std::max(longest, entry.size());
  return longest;
}

// Every node has its own: what is written there is written, and where the person may look for it is
// their decision.
bool is_node_local(std::string_view path) {
  return std::ranges::any_of(std::initializer_list<const char*>{"/tmp", "/var/tmp", "/dev"},
                             [&](const char* directory) { return is_below(path, directory); });
}

std::string storage_words(const Storage& storage) {
  std::string text;
  for (const std::string& path : storage.jobs_see) text += (text.empty() ? "" : ", ") + path;
  return text.empty() ? "all but " + (storage.jobs_dont_see.empty() ? "" : storage.jobs_dont_see[0])
                      : text;
}

// Jobs see the path as it is written, and where a link leads is not known to be out of their sight.
// (Not more: the submit host may have /work as a link to what the nodes mount at /work.)
bool visible(const std::string& path, const Storage& storage, const FileView& files) {
  if (!jobs_see(storage, path)) return false;
  const std::string real = files.real_path(path);
  return longest_match(storage.jobs_dont_see, real) <= longest_match(storage.jobs_see, real);
}

[[noreturn]] void refuse_storage(const std::string& what, const std::string& path,
                                 const Storage& storage, const FileView& files) {
  const std::string real = files.real_path(path);
  throw Error::format("{}: {}{} is not on storage that jobs see ({})", what, path,
                      real == path ? "" : " (which is " + real + ")", storage_words(storage));
}

// Where a person often points when they mean the prefix.
std::string prefix_hint(const std::string& path, const FileView& files) {
  if (files.is_directory(path + "/.pixi/envs/default/bin"))
    return "; did you mean " + path + "/.pixi/envs/default?";
  if (files.exists(path + "/pixi.toml")) return "; run 'pixi install' in it first";
  const fs::path file(path);
  if (file.filename() == "bin") return "; did you mean " + file.parent_path().string() + "?";
  if (file.parent_path().filename() == "bin")
    return "; did you mean " + file.parent_path().parent_path().string() + "?";
  return "";
}

// The part of a file name that is the same for all jobs: up to the directory before the first
// pattern. "/work/%u/log-%j" -> "/work".
std::string known_directory(const std::string& file) {
  const std::size_t pattern = file.find('%');
  return fs::path(file.substr(0, pattern)).parent_path().string();
}

void check_directory(const std::string& what, const std::string& path, const Storage& storage,
                     const FileView& files) {
  if (is_node_local(path)) return;
  if (!visible(path, storage, files)) refuse_storage(what, path, storage, files);
  if (!files.exists(path))
    throw Error::format(
        "{}: the directory {} does not exist: create it first, or the job ends "
        "without a trace",
        what, path);
  if (!files.is_directory(path)) throw Error::format("{}: {} is not a directory", what, path);
}

void check_output_file(const std::string& what, const std::string& file, const Storage& storage,
                       const FileView& files) {
  const std::string directory = known_directory(file);
  check_directory(what, directory, storage, files);
  if (is_node_local(directory)) return;
  const bool whole = file.find('%') == std::string::npos;
  if (whole && files.is_directory(file))
    throw Error::format("{}: {} is a directory: name a file in it", what, file);
  if (whole && files.exists(file)) {
    if (!files.is_writable(file)) throw Error::format("{}: you may not write to {}", what, file);
    return;
  }
  // With a pattern in the directory's own name, only its parent is known here.
  const bool pattern_in_directory = !whole && file.find('/', file.find('%')) != std::string::npos;
  if (!pattern_in_directory && !files.is_writable(directory))
    throw Error::format("{}: you may not write to the directory {}", what, directory);
}

// srun's words and task numbers, and sbatch's for /dev/null.
bool is_file_name(const std::string& output) {
  return output != "none" && output != "all" &&
         output.find_first_not_of("0123456789") != std::string::npos;
}

}  // namespace

const FileView& real_file_view() {
  static const RealFileView view;
  return view;
}

std::string absolute_path(std::string_view path, std::string_view directory) {
  fs::path whole = fs::path(directory) / fs::path(path);
  std::string text = whole.lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

bool jobs_see(const Storage& storage, std::string_view path) {
  const std::size_t seen = longest_match(storage.jobs_see, path);
  const std::size_t unseen = longest_match(storage.jobs_dont_see, path);
  if (seen == 0 && unseen == 0) return storage.jobs_see.empty();
  return seen > unseen;
}

void check_env_prefix(const std::string& prefix, const Storage& storage, const FileView& files) {
  if (prefix.find("/~") != std::string::npos && !files.exists(prefix))
    throw Error::format("--af-env: '~' in {} was not replaced by your shell: write the whole path",
                        prefix);
  if (!visible(prefix, storage, files)) refuse_storage("--af-env", prefix, storage, files);
  if (files.is_directory(prefix + "/bin")) return;
  const std::string hint = prefix_hint(prefix, files);
  if (!files.exists(prefix)) throw Error::format("--af-env: {} does not exist{}", prefix, hint);
  throw Error::format("--af-env: {} is not an environment: it has no bin/{}", prefix, hint);
}

void check_job_paths(const JobPaths& paths, const Storage& storage, const FileView& files) {
  const std::string directory = paths.chdir.empty()
                                    ? paths.submit_directory
                                    : absolute_path(paths.chdir, paths.submit_directory);
  check_directory(paths.chdir.empty() ? "the submit directory" : "--chdir", directory, storage,
                  files);
  const auto check = [&](const char* what, const std::string& file) {
    if (is_file_name(file)) check_output_file(what, absolute_path(file, directory), storage, files);
  };
  if (paths.output.empty() && paths.batch)
    check("the job's output (--output was not given)", "slurm-%j.out");
  else if (!paths.output.empty())
    check("--output", paths.output);
  if (!paths.error.empty()) check("--error", paths.error);
}

}  // namespace af
