// SPDX-License-Identifier: Apache-2.0
#include "af/train/hdf5_dataset.h"

#include <ATen/Functions.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/data/hdf5_file.h"
#include "train/data/hdf5_filters.h"
#include "train/data/hdf5_handle.h"
#include "train/data/hdf5_type.h"

namespace af::train {

struct Hdf5Dataset::Impl {
  std::string where;  // "digits.h5: dataset train/images", for errors
  Hdf5Handle file;
  Hdf5Handle dataset;
  Hdf5Handle memory_type;
  at::ScalarType scalar{};
  std::vector<int64_t> shape;      // of the dataset
  std::vector<int64_t> row_shape;  // shape without its first axis
  int64_t block_rows = 1;
  pid_t opened_by = 0;

  std::string described() const {
    return fmt::format("{} of shape [{}]", where, fmt::join(shape, ", "));
  }
};

namespace {

constexpr int64_t kBlockBytes = 1 << 20;  // of datasets without chunks

}  // namespace

Hdf5Dataset::Hdf5Dataset(const std::filesystem::path& file, const std::string& dataset)
    : impl_(std::make_unique<Impl>()) {
  const QuietHdf5 quiet;
  Impl& self = *impl_;
  self.where = fmt::format("{}: dataset {}", file.string(), dataset);
  self.opened_by = ::getpid();
  self.file = open_hdf5(file);
  // One chunk in the cache is enough for reading in blocks, but it has to fit: a chunk larger than
  // the cache (1 MiB by default) is decompressed again for every read that touches it.
  const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  H5Pset_chunk_cache(access.get(), 521, 16 << 20, 1.0);
  self.dataset = Hdf5Handle(H5Dopen2(self.file.get(), dataset.c_str(), access.get()), H5Dclose);
  if (!self.dataset) throw Error::format("{} cannot be opened: {}", self.where, hdf5_reason());

  self.shape = shape_of(self.dataset.get());
  if (self.shape.empty()) throw Error::format("{} is a single value: it has no rows", self.where);
  self.row_shape.assign(self.shape.begin() + 1, self.shape.end());

  const Hdf5Handle file_type(H5Dget_type(self.dataset.get()), H5Tclose);
  auto type = tensor_type_of(file_type.get());
  if (!type)
    throw Error::format("{} holds {}, which cannot become a tensor", self.described(),
                        name_of_class(file_type.get()));
  self.scalar = type->scalar;
  self.memory_type = std::move(type->memory);

  const Hdf5Handle properties(H5Dget_create_plist(self.dataset.get()), H5Pclose);
  check_filters(properties.get(), self.described());
  if (H5Pget_layout(properties.get()) == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(self.shape.size());
    H5Pget_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
    self.block_rows = static_cast<int64_t>(chunk[0]);
  } else {
    int64_t row_bytes = static_cast<int64_t>(c10::elementSize(self.scalar));
    for (const int64_t size : self.row_shape) row_bytes *= std::max<int64_t>(size, 1);
    self.block_rows = std::max<int64_t>(1, kBlockBytes / row_bytes);
  }
}

Hdf5Dataset::Hdf5Dataset(Hdf5Dataset&&) noexcept = default;
Hdf5Dataset& Hdf5Dataset::operator=(Hdf5Dataset&& other) noexcept {
  const QuietHdf5 quiet;
  impl_ = std::move(other.impl_);
  return *this;
}
Hdf5Dataset::~Hdf5Dataset() {
  const QuietHdf5 quiet;
  impl_.reset();
}

int64_t Hdf5Dataset::rows() const {
  return impl_->shape[0];
}
const std::vector<int64_t>& Hdf5Dataset::row_shape() const {
  return impl_->row_shape;
}
at::ScalarType Hdf5Dataset::type() const {
  return impl_->scalar;
}
int64_t Hdf5Dataset::block_rows() const {
  return impl_->block_rows;
}
int64_t Hdf5Dataset::blocks() const {
  return (rows() + impl_->block_rows - 1) / impl_->block_rows;
}

at::Tensor Hdf5Dataset::read(int64_t first_row, int64_t count) const {
  const Impl& self = *impl_;
  if (first_row < 0 || count < 0 || count > rows() - first_row)
    throw Error::format("{} has no rows {} to {}", self.described(), first_row,
                        first_row + count - 1);
  if (::getpid() != self.opened_by)
    throw Error::format("{} was opened before fork(): open it in the process that reads it",
                        self.described());
  std::vector<int64_t> shape = self.shape;
  shape[0] = count;
  at::Tensor tensor = at::empty(shape, at::TensorOptions(self.scalar));
  if (tensor.numel() == 0) return tensor;

  const QuietHdf5 quiet;
  std::vector<hsize_t> start(shape.size(), 0);
  start[0] = static_cast<hsize_t>(first_row);
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  const Hdf5Handle file_space(H5Dget_space(self.dataset.get()), H5Sclose);
  const Hdf5Handle memory_space(
      H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose);
  if (H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, start.data(), nullptr, sizes.data(),
                          nullptr) < 0 ||
      H5Dread(self.dataset.get(), self.memory_type.get(), memory_space.get(), file_space.get(),
              H5P_DEFAULT, tensor.data_ptr()) < 0)
    throw Error::format("{}: rows {} to {} cannot be read: {}", self.described(), first_row,
                        first_row + count - 1, hdf5_reason());
  return tensor;
}

at::Tensor Hdf5Dataset::read_block(int64_t block) const {
  if (block < 0 || block >= blocks())
    throw Error::format("{} has {} blocks: there is no block {}", impl_->described(), blocks(),
                        block);
  const int64_t first = block * impl_->block_rows;
  return read(first, std::min(impl_->block_rows, rows() - first));
}

}  // namespace af::train
