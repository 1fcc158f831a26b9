// SPDX-License-Identifier: Apache-2.0
#include "train/data/batch_assembly.h"

#include <ATen/Functions.h>

#include "common/error.h"

namespace af::train {

BatchAssembly::BatchAssembly(const Batch& example,
                             const std::map<std::string, at::ScalarType>& types, bool pinned)
    : pinned_(pinned) {
  for (const auto& [name, type] : types) (void)example[name];  // throws for one that is not there
  for (const auto& [name, tensor] : example.columns()) {
    Column column{.name = name, .from = tensor.scalar_type(), .to = tensor.scalar_type()};
    if (!tensor.is_cpu()) throw Error::format("column {} of a block is not in host memory", name);
    column.row_shape = tensor.sizes().slice(1).vec();
    std::size_t numbers = 1;
    for (const int64_t size : column.row_shape) numbers *= static_cast<std::size_t>(size);
    const auto wanted = types.find(name);
    if (wanted != types.end() && wanted->second != column.from) {
      column.to = wanted->second;
      const auto format = format_of(column.from);
      if (format) column.gather.convert = converter(*format, column.to);
      if (column.gather.convert == nullptr)
        throw Error::format(
            "column {} is {}, and cannot come as {}: to Float, Double, or (whole numbers) Long",
            name, c10::toString(column.from), c10::toString(column.to));
    }
    column.gather.numbers = numbers;
    column.gather.from_bytes = numbers * c10::elementSize(column.from);
    column.gather.to_bytes = numbers * c10::elementSize(column.to);
    row_bytes_ += column.gather.from_bytes;
    columns_.push_back(std::move(column));
  }
}

void BatchAssembly::take(Batch read, LoadedBlock& block) const {
  const auto fits = [&](std::size_t i) {
    const auto& [name, tensor] = read.columns()[i];
    return name == columns_[i].name && tensor.is_cpu() &&
           tensor.scalar_type() == columns_[i].from &&
           tensor.sizes().slice(1) == at::IntArrayRef(columns_[i].row_shape);
  };
  bool same = read.columns().size() == columns_.size();
  for (std::size_t i = 0; same && i < columns_.size(); ++i) same = fits(i);
  if (!same)
    throw Error::format(
        "block {} has other columns than the first: names, types and shapes must "
        "be the same in all",
        block.number);
  if (read.rows() != block.rows)
    throw Error::format("block {} has {} rows, and was to have {}", block.number, read.rows(),
                        block.rows);
  for (const auto& [name, tensor] : read.columns()) {
    block.columns.push_back(tensor.contiguous());
    block.bases.push_back(static_cast<const std::byte*>(block.columns.back().data_ptr()));
  }
}

Batch BatchAssembly::assemble(const std::vector<int64_t>& rows,
                              const std::vector<uint32_t>& block_of_row,
                              const std::vector<std::shared_ptr<LoadedBlock>>& blocks) const {
  std::vector<const std::byte*> places(rows.size());
  Batch batch;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    const std::size_t bytes = column.gather.from_bytes;
    if (block_of_row.empty() && !rows.empty()) {
      const std::byte* base = blocks[0]->bases[i];
      for (std::size_t row = 0; row < rows.size(); ++row)
        places[row] = base + static_cast<std::size_t>(rows[row]) * bytes;
    } else {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const LoadedBlock& block = *blocks[block_of_row[row]];
        places[row] =
            block.bases[i] + static_cast<std::size_t>(rows[row] - block.first_row) * bytes;
      }
    }
    std::vector<int64_t> shape = column.row_shape;
    shape.insert(shape.begin(), static_cast<int64_t>(rows.size()));
    const at::Tensor tensor = at::empty(shape, at::TensorOptions(column.to).pinned_memory(pinned_));
    gather(places, column.gather, static_cast<std::byte*>(tensor.data_ptr()));
    batch.add(column.name, tensor);
  }
  return batch;
}

bool BatchAssembly::join(LoadedBlock& block, const LoadedBlock& next) const {
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (block.bases[i] + static_cast<std::size_t>(block.rows) * columns_[i].gather.from_bytes !=
        next.bases[i])
      return false;
  block.rows += next.rows;
  block.columns.insert(block.columns.end(), next.columns.begin(), next.columns.end());
  return true;
}

}  // namespace af::train
