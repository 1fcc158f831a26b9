// SPDX-License-Identifier: Apache-2.0
#include "af/train/block_reader.h"

#include <ATen/Functions.h>

#include <algorithm>

#include <fmt/ranges.h>

#include "common/error.h"

namespace af::train {

void Batch::add(std::string name, at::Tensor tensor) {
  if (contains(name)) throw Error::format("a batch has two columns of the name {}", name);
  if (!tensor.defined() || tensor.dim() == 0)
    throw Error::format("column {} of a batch has no rows: a tensor of one axis at least is needed",
                        name);
  if (!columns_.empty() && tensor.size(0) != rows())
    throw Error::format("column {} of a batch has {} rows, and {} has {}", name, tensor.size(0),
                        columns_.front().first, rows());
  columns_.emplace_back(std::move(name), std::move(tensor));
}

bool Batch::contains(std::string_view name) const {
  return std::any_of(columns_.begin(), columns_.end(),
                     [&](const Column& column) { return column.first == name; });
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  for (const Column& column : columns_)
    if (column.first == name) return column.second;
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.first);
  throw Error::format("a batch has no column {}: it has {}", name, fmt::join(names, ", "));
}

std::string BlockReader::describe_row(int64_t row) const {
  return fmt::format("row {}", row);
}

std::vector<int64_t> even_blocks(int64_t rows, int64_t rows_of_block) {
  if (rows < 0 || rows_of_block < 1)
    throw Error::format("{} rows in blocks of {}", rows, rows_of_block);
  std::vector<int64_t> blocks(static_cast<size_t>(rows / rows_of_block), rows_of_block);
  if (rows % rows_of_block > 0) blocks.push_back(rows % rows_of_block);
  return blocks;
}

Batch read_rows(const BlockReader& reader, int64_t first, int64_t last) {
  const std::vector<int64_t> blocks = reader.block_rows();
  int64_t begin = 0;
  std::vector<Batch> parts;
  for (size_t block = 0; block < blocks.size(); begin += blocks[block++]) {
    const int64_t from = std::max(first, begin);
    const int64_t to = std::min(last, begin + blocks[block]);
    // An empty range still needs the columns, with no rows.
    if (from >= to && !(first == last && parts.empty() && block + 1 == blocks.size())) continue;
    const Batch read = reader.read_block(static_cast<int64_t>(block));
    Batch part;
    for (const auto& [name, tensor] : read.columns())
      part.add(name,
               from < to ? tensor.narrow(0, from - begin, to - from) : tensor.narrow(0, 0, 0));
    parts.push_back(std::move(part));
  }
  int64_t found = 0;
  for (const Batch& part : parts) found += part.rows();
  if (first < 0 || found != last - first)
    throw Error::format("the data has no rows {} to {}", first, last - 1);
  Batch all;
  if (parts.empty()) return all;
  for (const auto& [name, tensor] : parts[0].columns()) {
    std::vector<at::Tensor> pieces;
    for (const Batch& part : parts) pieces.push_back(part[name]);
    all.add(name, at::cat(pieces));
  }
  return all;
}

TensorBlocks::TensorBlocks(Batch data, int64_t rows_of_block) : rows_of_block_(rows_of_block) {
  if (rows_of_block < 1) throw Error::format("blocks of {} rows", rows_of_block);
  for (const auto& [name, tensor] : data.columns()) {
    if (!tensor.is_cpu()) throw Error::format("column {} is not in host memory", name);
    data_.add(name, tensor.detach().contiguous());
  }
}

std::vector<int64_t> TensorBlocks::block_rows() const {
  return even_blocks(data_.rows(), rows_of_block_);
}

Batch TensorBlocks::read_block(int64_t block) const {
  const int64_t first = block * rows_of_block_;
  if (block < 0 || first >= data_.rows())
    throw Error::format("there is no block {} in {} rows", block, data_.rows());
  Batch batch;
  for (const auto& [name, tensor] : data_.columns())
    batch.add(name, tensor.narrow(0, first, std::min(rows_of_block_, data_.rows() - first)));
  return batch;
}

}  // namespace af::train
