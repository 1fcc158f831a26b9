// SPDX-License-Identifier: Apache-2.0
// One dataset of one file: its rows, read by the way that its layout allows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "af/train/hdf5_blocks.h"
#include "train/data/chunk_filters.h"
#include "train/data/file_mapping.h"
#include "train/data/hdf5_fields.h"
#include "train/data/hdf5_handle.h"

namespace af::train {

class Hdf5Source {
 public:
  enum class Way { mapped, chunks, hdf5 };

  // Under QuietHdf5. Throws af::Error.
  Hdf5Source(hid_t file, const std::filesystem::path& path, const Hdf5Column& column, bool map);

  Way way() const { return way_; }
  int64_t rows() const { return shape_[0]; }
  int64_t chunk_rows() const { return chunk_.empty() ? 0 : chunk_[0]; }
  std::size_t row_bytes() const;  // in the file
  const std::vector<Hdf5Tensor>& tensors() const { return tensors_; }
  // The shape of a row of a tensor.
  std::vector<int64_t> row_shape(const Hdf5Tensor& tensor) const;
  const std::string& described() const { return described_; }
  std::string way_in_words() const;

  // Whole blocks of so many rows are going to be read: H5Dread's cache is to hold their chunks.
  // Under QuietHdf5.
  void expect_blocks_of(hid_t file, int64_t rows);

  // All rows, if mapped: of the one tensor. Row r begins at r * row_bytes().
  const std::shared_ptr<const FileMapping>& mapping() const { return mapping_; }

  // Rows into the memory of each tensor; not for mapped ones. From any thread.
  void read(int64_t first, int64_t count, const std::vector<std::byte*>& to) const;

 private:
  void open(hid_t file, std::size_t cache_bytes, std::size_t chunks);
  void choose_way(const std::filesystem::path& path, bool map);
  void map_if_the_same(const std::filesystem::path& path);
  std::size_t elements_of_row() const;
  std::size_t chunks_across() const;
  void read_by_hdf5(int64_t first, int64_t count, const std::vector<std::byte*>& to) const;
  bool read_chunk(const std::vector<int64_t>& corner, int64_t first, int64_t count,
                  const std::vector<std::byte*>& to) const;
  void place(const std::byte* chunk, const std::vector<int64_t>& corner, int64_t first,
             int64_t count, const std::vector<std::byte*>& to) const;

  std::string dataset_name_;
  std::string where_;      // "a.h5: dataset jets"
  std::string described_;  // with its shape
  Hdf5Handle dataset_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> chunk_;  // of the same number of axes; empty: not in chunks
  Hdf5Element element_;
  std::vector<Hdf5Tensor> tensors_;
  Way way_ = Way::hdf5;
  ChunkPipeline pipeline_;
  std::shared_ptr<const FileMapping> mapping_;
};

}  // namespace af::train
