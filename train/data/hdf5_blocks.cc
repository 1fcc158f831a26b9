// SPDX-License-Identifier: Apache-2.0
#include "af/train/hdf5_blocks.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/data/hdf5_file.h"
#include "train/data/hdf5_source.h"

namespace af::train {
namespace {

constexpr std::size_t kLeastBlock = std::size_t{256} << 10;
constexpr std::size_t kBlockWithoutChunks = std::size_t{1} << 20;
constexpr std::size_t kMostForWholeChunks = std::size_t{32} << 20;

struct Block {
  std::size_t file;
  int64_t first;  // row of the file
  int64_t rows;
};

struct OpenFile {
  std::string path;
  Hdf5Handle file;
  std::vector<std::unique_ptr<Hdf5Source>> sources;  // of each column
  int64_t rows = 0;
  int64_t first_row = 0;  // of all files' rows
};

// Whole chunks of all datasets. Where those go together in large numbers of rows only, of the one
// with the most rows: the others' are then read for two blocks, where they lie across.
int64_t rows_of_block(const std::vector<std::unique_ptr<Hdf5Source>>& sources) {
  std::size_t row_bytes = 0;
  int64_t together = 1;
  int64_t most = 0;
  for (const auto& source : sources) {
    row_bytes += source->row_bytes();
    const int64_t rows = source->chunk_rows();
    if (rows == 0) continue;
    most = std::max(most, rows);
    if (together > 0) together = std::lcm(together, rows);
    if (static_cast<std::size_t>(together) > kMostForWholeChunks) together = 0;
  }
  row_bytes = std::max<std::size_t>(row_bytes, 1);
  if (most == 0) return std::max<int64_t>(1, static_cast<int64_t>(kBlockWithoutChunks / row_bytes));
  int64_t rows = together;
  if (together == 0 || static_cast<std::size_t>(together) * row_bytes > kMostForWholeChunks)
    rows = most;
  const auto least = static_cast<int64_t>(kLeastBlock / row_bytes);
  return rows * std::max<int64_t>(1, (least + rows - 1) / rows);
}

void check_agreement(const OpenFile& first, const OpenFile& other) {
  for (std::size_t i = 0; i < first.sources.size(); ++i) {
    const Hdf5Source& a = *first.sources[i];
    const Hdf5Source& b = *other.sources[i];
    bool same = a.tensors().size() == b.tensors().size();
    for (std::size_t j = 0; same && j < a.tensors().size(); ++j) {
      const Hdf5Tensor& one = a.tensors()[j];
      const Hdf5Tensor& two = b.tensors()[j];
      same = one.name == two.name && one.type == two.type && a.row_shape(one) == b.row_shape(two);
    }
    if (!same)
      throw Error::format(
          "{} gives other tensors than {}: types, fields and shapes (but for the rows) must be the "
          "same in all files",
          b.described(), a.described());
  }
}

}  // namespace

struct Hdf5Blocks::Impl {
  std::vector<OpenFile> files;
  std::vector<Block> blocks;
  int64_t rows = 0;
  bool in_memory = true;
  pid_t opened_by = ::getpid();

  void open(const std::filesystem::path& path, const std::vector<Hdf5Column>& columns, bool map);
};

void Hdf5Blocks::Impl::open(const std::filesystem::path& path,
                            const std::vector<Hdf5Column>& columns, bool map) {
  OpenFile opened{.path = path.string(), .file = open_hdf5(path), .sources = {}, .first_row = rows};
  for (const Hdf5Column& column : columns) {
    opened.sources.push_back(std::make_unique<Hdf5Source>(opened.file.get(), path, column, map));
    const Hdf5Source& first = *opened.sources.front();
    const Hdf5Source& last = *opened.sources.back();
    if (first.rows() != last.rows())
      throw Error::format("{} has other rows than {}: a row is what all datasets have there",
                          last.described(), first.described());
    in_memory = in_memory && (last.way() == Hdf5Source::Way::mapped || last.rows() == 0);
  }
  opened.rows = opened.sources.front()->rows();
  rows += opened.rows;
  if (!files.empty()) check_agreement(files.front(), opened);
  files.push_back(std::move(opened));
}

Hdf5Blocks::Hdf5Blocks(const std::vector<std::string>& files, std::vector<Hdf5Column> columns,
                       Hdf5Options options)
    : impl_(std::make_unique<Impl>()) {
  if (columns.empty()) throw Error("no dataset is named");
  if (options.block_rows < 0) throw Error::format("blocks of {} rows", options.block_rows);
  const QuietHdf5 quiet;
  Impl& self = *impl_;
  for (const auto& path : files_of(files)) self.open(path, columns, options.map);
  for (std::size_t i = 0; i < self.files.size(); ++i) {
    const OpenFile& file = self.files[i];
    const int64_t size = options.block_rows > 0 ? options.block_rows : rows_of_block(file.sources);
    for (const auto& source : file.sources) source->expect_blocks_of(file.file.get(), size);
    for (int64_t first = 0; first < file.rows; first += size)
      self.blocks.push_back({i, first, std::min(size, file.rows - first)});
  }
  Batch names;  // throws for two of one name
  for (const auto& source : self.files.front().sources)
    for (const Hdf5Tensor& tensor : source->tensors()) names.add(tensor.name, at::empty({0}));
}

Hdf5Blocks::~Hdf5Blocks() {
  const QuietHdf5 quiet;
  impl_.reset();
}

std::vector<int64_t> Hdf5Blocks::block_rows() const {
  std::vector<int64_t> rows;
  rows.reserve(impl_->blocks.size());
  for (const Block& block : impl_->blocks) rows.push_back(block.rows);
  return rows;
}

int64_t Hdf5Blocks::rows() const {
  return impl_->rows;
}

bool Hdf5Blocks::in_memory() const {
  return impl_->in_memory;
}

std::string Hdf5Blocks::describe_row(int64_t row) const {
  for (const OpenFile& file : impl_->files)
    if (row >= file.first_row && row < file.first_row + file.rows)
      return fmt::format("row {} of {}", row - file.first_row, file.path);
  return fmt::format("row {}", row);
}

std::string Hdf5Blocks::description() const {
  std::vector<std::string> lines;
  for (const auto& source : impl_->files.front().sources)
    lines.push_back(fmt::format("{}: {}", source->described(), source->way_in_words()));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

Batch Hdf5Blocks::read_block(int64_t number) const {
  const Impl& self = *impl_;
  if (number < 0 || number >= static_cast<int64_t>(self.blocks.size()))
    throw Error::format("{}: there is no block {}: there are {}", self.files.front().path, number,
                        self.blocks.size());
  const Block& block = self.blocks[static_cast<std::size_t>(number)];
  const OpenFile& file = self.files[block.file];
  if (::getpid() != self.opened_by)
    throw Error::format("{} was opened before fork(): open it in the process that reads it",
                        file.path);
  Batch batch;
  for (const auto& source : file.sources) {
    std::vector<at::Tensor> tensors;
    std::vector<std::byte*> memory;
    for (const Hdf5Tensor& tensor : source->tensors()) {
      std::vector<int64_t> shape = source->row_shape(tensor);
      shape.insert(shape.begin(), block.rows);
      const at::TensorOptions options(tensor.type);
      if (source->way() == Hdf5Source::Way::mapped) {
        std::byte* first =
            source->mapping()->data() + static_cast<std::size_t>(block.first) * source->row_bytes();
        tensors.push_back(at::from_blob(
            first, shape, [kept = source->mapping()](void*) {}, options));
      } else {
        tensors.push_back(at::empty(shape, options));
        memory.push_back(static_cast<std::byte*>(tensors.back().data_ptr()));
      }
    }
    if (!memory.empty()) source->read(block.first, block.rows, memory);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      batch.add(source->tensors()[i].name, std::move(tensors[i]));
  }
  return batch;
}

}  // namespace af::train
