// SPDX-License-Identifier: Apache-2.0
#include "train/data/hdf5_file.h"

#include <glob.h>
#include <unistd.h>

#include <cstdlib>

#include "common/error.h"

namespace af::train {

Hdf5Handle open_hdf5(const std::filesystem::path& path) {
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), /*use=*/0, /*ignore_when_disabled=*/1);
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  // A program that has this file open with the lock (to write it, or through other code) must go on
  // as it began: HDF5 refuses two ways in one process.
  if (!file) file = Hdf5Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (file) return file;
  const std::string reason = hdf5_reason();
  if (::access(path.c_str(), R_OK) != 0) throw errno_error("cannot read " + path.string());
  if (reason.find("lock file") != std::string::npos) {
    const char* asked = std::getenv("HDF5_USE_FILE_LOCKING");
    throw Error::format(
        "cannot read {}: {}. HDF5_USE_FILE_LOCKING is {}: another process writes the file, or its "
        "file system has no locks; then set HDF5_USE_FILE_LOCKING=FALSE",
        path.string(), reason, asked != nullptr ? asked : "not set");
  }
  throw Error::format("cannot read {}: not an HDF5 file, or a damaged one: {}", path.string(),
                      reason);
}

std::vector<int64_t> shape_of(hid_t dataset) {
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  const int axes = H5Sget_simple_extent_ndims(space.get());
  std::vector<hsize_t> sizes(axes > 0 ? static_cast<size_t>(axes) : 0);
  H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
  return {sizes.begin(), sizes.end()};
}

std::vector<std::filesystem::path> files_of(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> files;
  for (const std::string& pattern : patterns) {
    if (std::filesystem::exists(pattern)) {  // also when its name has a * or [ in it
      files.emplace_back(pattern);
      continue;
    }
    glob_t found{};
    const int result = ::glob(pattern.c_str(), GLOB_TILDE, nullptr, &found);
    for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i)
      files.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (result != 0) throw Error::format("no file fits {}", pattern);
  }
  if (files.empty()) throw Error("no HDF5 file is named");
  return files;
}

}  // namespace af::train
