// SPDX-License-Identifier: Apache-2.0
// Small HDF5 files for tests.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <filesystem>
#include <string>
#include <vector>

#include "train/data/hdf5_handle.h"

namespace af::train {

struct DatasetLayout {
  std::vector<hsize_t> chunk;  // empty: contiguous
  bool shuffle = false;
  int gzip = -1;
  bool fletcher32 = false;
};

class Hdf5Writer {
 public:
  explicit Hdf5Writer(const std::filesystem::path& path)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose) {}

  void put(const std::string& name, hid_t file_type, std::vector<hsize_t> shape, hid_t memory_type,
           const void* values, const DatasetLayout& layout = {}) {
    const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (!layout.chunk.empty())
      H5Pset_chunk(properties.get(), static_cast<int>(layout.chunk.size()), layout.chunk.data());
    if (layout.shuffle) H5Pset_shuffle(properties.get());
    if (layout.gzip >= 0) H5Pset_deflate(properties.get(), static_cast<unsigned>(layout.gzip));
    if (layout.fletcher32) H5Pset_fletcher32(properties.get());
    put_with(name, file_type, shape, memory_type, values, properties.get());
  }

  void put_with(const std::string& name, hid_t file_type, const std::vector<hsize_t>& shape,
                hid_t memory_type, const void* values, hid_t properties) {
    const Hdf5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(links.get(), 1);
    const Hdf5Handle space(
        shape.empty() ? H5Screate(H5S_SCALAR)
                      : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
        H5Sclose);
    const Hdf5Handle dataset(H5Dcreate2(file_.get(), name.c_str(), file_type, space.get(),
                                        links.get(), properties, H5P_DEFAULT),
                             H5Dclose);
    ASSERT_TRUE(dataset) << name;
    if (values != nullptr) {
      ASSERT_GE(H5Dwrite(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    }
    H5Fflush(file_.get(), H5F_SCOPE_LOCAL);
  }

  // 0, 1, 2, … in the dataset's order.
  void put_counting(const std::string& name, hid_t file_type, const std::vector<hsize_t>& shape,
                    const DatasetLayout& layout = {}) {
    std::size_t count = 1;
    for (const hsize_t size : shape) count *= size;
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i);
    put(name, file_type, shape, H5T_NATIVE_DOUBLE, values.data(), layout);
  }

  hid_t file() const { return file_.get(); }

 private:
  Hdf5Handle file_;
};

}  // namespace af::train
