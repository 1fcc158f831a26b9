// SPDX-License-Identifier: Apache-2.0
#include "train/data/hdf5_source.h"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/data/hdf5_file.h"
#include "train/data/hdf5_filters.h"

namespace af::train {
namespace {

constexpr std::size_t kLeastCache = std::size_t{16} << 20;
constexpr std::size_t kMostCache = std::size_t{1} << 30;

template <class Number>
std::size_t product(const std::vector<Number>& sizes, std::size_t from = 0) {
  std::size_t all = 1;
  for (std::size_t i = from; i < sizes.size(); ++i) all *= static_cast<std::size_t>(sizes[i]);
  return all;
}

}  // namespace

// Opening ---------------------------------------------------------------------------------------

Hdf5Source::Hdf5Source(hid_t file, const std::filesystem::path& path, const Hdf5Column& column,
                       bool map)
    : dataset_name_(column.dataset),
      where_(fmt::format("{}: dataset {}", path.string(), column.dataset)) {
  open(file, kLeastCache, 1);
  shape_ = shape_of(dataset_.get());
  described_ = fmt::format("{} of shape [{}]", where_, fmt::join(shape_, ", "));
  if (shape_.empty()) throw Error::format("{} is a single value: it has no rows", where_);
  const Hdf5Handle type(H5Dget_type(dataset_.get()), H5Tclose);
  element_ = element_of(type.get(), column.fields, described_);
  tensors_ = tensors_of(element_, column);
  choose_way(path, map);
}

void Hdf5Source::open(hid_t file, std::size_t cache_bytes, std::size_t chunks) {
  const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  // Chunks that are read whole are dropped first (1.0); 100 slots a chunk keep them apart.
  H5Pset_chunk_cache(access.get(), std::max<std::size_t>(521, chunks * 100 + 1), cache_bytes, 1.0);
  Hdf5Handle opened(H5Dopen2(file, dataset_name_.c_str(), access.get()), H5Dclose);
  if (!opened) throw Error::format("{} cannot be opened: {}", where_, hdf5_reason());
  dataset_ = std::move(opened);
}

void Hdf5Source::choose_way(const std::filesystem::path& path, bool map) {
  const Hdf5Handle properties(H5Dget_create_plist(dataset_.get()), H5Pclose);
  check_filters(properties.get(), described_);
  const H5D_layout_t layout = H5Pget_layout(properties.get());
  if (layout == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(shape_.size());
    H5Pget_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
    chunk_.assign(chunk.begin(), chunk.end());
    auto pipeline =
        own_pipeline(properties.get(), element_.bytes, product(chunk_) * element_.bytes);
    if (element_.in_file && pipeline) {
      pipeline_ = *pipeline;
      way_ = Way::chunks;
    }
    return;
  }
  if (map && layout == H5D_CONTIGUOUS && tensors_.size() == 1 && tensors_[0].as_in_file &&
      element_.in_file && H5Pget_external_count(properties.get()) == 0)
    map_if_the_same(path);
}

// H5Dget_offset is the place in the file for the default driver only (a file may be several, or in
// memory): so the bytes are compared with what HDF5 reads.
void Hdf5Source::map_if_the_same(const std::filesystem::path& path) {
  const haddr_t offset = H5Dget_offset(dataset_.get());
  const std::size_t bytes = product(shape_) * element_.bytes;
  if (offset == HADDR_UNDEF || bytes == 0) return;
  auto mapping = std::make_shared<const FileMapping>(path, offset, bytes);
  const auto compare = [&](int64_t row) {
    std::vector<std::byte> read(row_bytes());
    read_by_hdf5(row, 1, {read.data()});
    return std::memcmp(read.data(), mapping->data() + static_cast<std::size_t>(row) * row_bytes(),
                       read.size()) == 0;
  };
  if (!compare(0) || !compare(rows() - 1)) return;
  mapping_ = std::move(mapping);
  way_ = Way::mapped;
}

std::size_t Hdf5Source::elements_of_row() const {
  return product(shape_, 1);
}

std::size_t Hdf5Source::row_bytes() const {
  return elements_of_row() * element_.bytes;
}

std::vector<int64_t> Hdf5Source::row_shape(const Hdf5Tensor& tensor) const {
  std::vector<int64_t> shape(shape_.begin() + 1, shape_.end());
  shape.insert(shape.end(), tensor.element_shape.begin(), tensor.element_shape.end());
  return shape;
}

std::string Hdf5Source::way_in_words() const {
  if (way_ == Way::mapped) return "mapped into memory";
  std::string text = chunk_.empty() ? "" : fmt::format("chunks of {} rows", chunk_[0]);
  for (std::size_t i = 0; i < pipeline_.filters.size(); ++i) {
    const ChunkFilter filter = pipeline_.filters[i];
    text += i == 0 ? " (" : ", ";
    text += filter == ChunkFilter::deflate   ? "gzip"
            : filter == ChunkFilter::shuffle ? "shuffle"
                                             : "fletcher32";
  }
  if (!pipeline_.filters.empty()) text += ")";
  if (way_ == Way::chunks) return text + ", read directly";
  return (text.empty() ? "" : text + ", ") + "read by HDF5";
}

std::size_t Hdf5Source::chunks_across() const {
  std::size_t chunks = 1;
  for (std::size_t axis = 1; axis < chunk_.size(); ++axis)
    chunks *= static_cast<std::size_t>((shape_[axis] + chunk_[axis] - 1) / chunk_[axis]);
  return chunks;
}

void Hdf5Source::expect_blocks_of(hid_t file, int64_t rows) {
  if (way_ != Way::hdf5 || chunk_.empty()) return;
  const auto down = static_cast<std::size_t>((rows + chunk_[0] - 1) / chunk_[0] + 1);
  const std::size_t chunks = down * chunks_across();
  const std::size_t bytes = chunks * product(chunk_) * element_.bytes;
  if (bytes > kLeastCache) open(file, std::min(bytes, kMostCache), chunks);
}

// Reading ---------------------------------------------------------------------------------------

void Hdf5Source::read(int64_t first, int64_t count, const std::vector<std::byte*>& to) const {
  if (count == 0 || row_bytes() == 0) return;
  try {
    if (way_ != Way::chunks) return read_by_hdf5(first, count, to);
    std::vector<int64_t> corner(shape_.size(), 0);
    for (corner[0] = first / chunk_[0] * chunk_[0]; corner[0] < first + count;
         corner[0] += chunk_[0]) {
      for (;;) {
        if (!read_chunk(corner, first, count, to)) return read_by_hdf5(first, count, to);
        std::size_t axis = corner.size() - 1;  // the next one across
        for (; axis > 0; --axis) {
          corner[axis] += chunk_[axis];
          if (corner[axis] < shape_[axis]) break;
          corner[axis] = 0;
        }
        if (axis == 0) break;
      }
    }
  } catch (const Error& error) {
    throw Error::format("{}: rows {} to {} cannot be read: {}", described_, first,
                        first + count - 1, error.what());
  }
}

void Hdf5Source::read_by_hdf5(int64_t first, int64_t count,
                              const std::vector<std::byte*>& to) const {
  const std::size_t elements = static_cast<std::size_t>(count) * elements_of_row();
  const bool direct = tensors_.size() == 1 && tensors_[0].as_in_file;
  std::vector<std::byte> plain(direct ? 0 : elements * element_.bytes);
  {
    const QuietHdf5 quiet;
    std::vector<hsize_t> start(shape_.size(), 0);
    start[0] = static_cast<hsize_t>(first);
    std::vector<hsize_t> sizes(shape_.begin(), shape_.end());
    sizes[0] = static_cast<hsize_t>(count);
    const Hdf5Handle file_space(H5Dget_space(dataset_.get()), H5Sclose);
    const Hdf5Handle memory_space(
        H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose);
    if (H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, start.data(), nullptr, sizes.data(),
                            nullptr) < 0 ||
        H5Dread(dataset_.get(), element_.memory.get(), memory_space.get(), file_space.get(),
                H5P_DEFAULT, direct ? to[0] : plain.data()) < 0)
      throw Error(hdf5_reason());
  }
  if (direct) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    convert_elements(element_, tensors_[i], plain.data(), to[i], elements);
}

// False for a chunk that was never written: HDF5 knows what to put there.
bool Hdf5Source::read_chunk(const std::vector<int64_t>& corner, int64_t first, int64_t count,
                            const std::vector<std::byte*>& to) const {
  static thread_local std::vector<std::byte> stored;
  static thread_local std::vector<std::byte> plain;
  const std::vector<hsize_t> offset(corner.begin(), corner.end());
  uint32_t skipped = 0;
  {
    const QuietHdf5 quiet;
    hsize_t bytes = 0;
    if (H5Dget_chunk_storage_size(dataset_.get(), offset.data(), &bytes) < 0 || bytes == 0)
      return false;
    stored.resize(bytes);
    if (H5Dread_chunk(dataset_.get(), H5P_DEFAULT, offset.data(), &skipped, stored.data()) < 0)
      throw Error(hdf5_reason());
  }
  // Straight into the tensor, if the chunk is nothing but rows of it.
  bool whole_rows = corner[0] >= first && corner[0] + chunk_[0] <= first + count;
  for (std::size_t axis = 1; axis < chunk_.size(); ++axis)
    whole_rows = whole_rows && chunk_[axis] == shape_[axis];
  if (whole_rows && tensors_.size() == 1 && tensors_[0].as_in_file) {
    undo_filters(pipeline_, skipped, stored,
                 to[0] + static_cast<std::size_t>(corner[0] - first) * row_bytes());
    return true;
  }
  plain.resize(pipeline_.chunk_bytes);
  undo_filters(pipeline_, skipped, stored, plain.data());
  place(plain.data(), corner, first, count, to);
  return true;
}

// The part of a chunk that lies in the dataset and in rows [first, first + count), run by run: what
// lies together in the chunk and in the tensor.
void Hdf5Source::place(const std::byte* chunk, const std::vector<int64_t>& corner, int64_t first,
                       int64_t count, const std::vector<std::byte*>& to) const {
  const std::size_t axes = shape_.size();
  std::vector<int64_t> low(axes, 0), high(axes);  // within the chunk
  for (std::size_t axis = 0; axis < axes; ++axis)
    high[axis] = std::min(chunk_[axis], shape_[axis] - corner[axis]);
  low[0] = std::max<int64_t>(0, first - corner[0]);
  high[0] = std::min(high[0], first + count - corner[0]);
  // Axes from `joined` on are whole in both: one run.
  std::size_t joined = axes;
  std::size_t run = 1;
  while (joined > 0) {
    --joined;
    run *= static_cast<std::size_t>(high[joined] - low[joined]);
    if (chunk_[joined] != shape_[joined] || joined == 0) break;
  }
  std::vector<int64_t> at = low;
  for (;;) {
    std::size_t from = 0;
    std::size_t target = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      from = from * static_cast<std::size_t>(chunk_[axis]) + static_cast<std::size_t>(at[axis]);
      const int64_t place = corner[axis] + at[axis] - (axis == 0 ? first : 0);
      target = axis == 0 ? static_cast<std::size_t>(place)
                         : target * static_cast<std::size_t>(shape_[axis]) +
                               static_cast<std::size_t>(place);
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      convert_elements(element_, tensors_[i], chunk + from * element_.bytes,
                       to[i] + target * tensors_[i].element_bytes, run);
    std::size_t axis = joined;
    for (; axis > 0; --axis) {
      if (++at[axis - 1] < high[axis - 1]) break;
      at[axis - 1] = low[axis - 1];
    }
    if (axis == 0) return;
  }
}

}  // namespace af::train
