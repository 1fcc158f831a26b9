// SPDX-License-Identifier: Apache-2.0
#include "af/train/state_writer.h"

#include <ATen/Functions.h>

#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/checkpoint/archive_file.h"
#include "train/checkpoint/state_layout.h"

namespace af::train {

at::Tensor tensor_to_write(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
}

struct StateWriter::Impl {
  std::filesystem::path path;
  StateLayout layout;
  ArchiveFile file;
  std::vector<WrittenPart> parts;

  Impl(const std::filesystem::path& where, const State& state)
      : path(where), layout(state), file(where, ArchiveFile::Open::create) {
    for (const StateLayout::Text& one : layout.texts)
      parts.push_back(file.write(layout.zip, one.entry, 0, one.text.data(), one.text.size()));
  }

  const StateLayout::Tensor& find(const std::string& name, const at::Tensor& given) const {
    const auto found = layout.by_name.find(name);
    if (found == layout.by_name.end())
      throw Error::format("{}: the state to be written has no tensor {}", path.string(), name);
    const StateLayout::Tensor& planned = layout.tensors[found->second];
    if (given.scalar_type() != planned.type)
      throw Error::format("{}: the tensor {} is of type {} and was to be {}", path.string(), name,
                          c10::toString(given.scalar_type()), c10::toString(planned.type));
    return planned;
  }

  void write(const StateLayout::Tensor& planned, const std::string& name, int64_t first,
             const at::Tensor& elements) {
    if (planned.name != name) return;  // the second name of the same memory
    const at::Tensor plain = elements.detach().to(at::kCPU).contiguous();
    const auto offset = static_cast<uint64_t>(first) * plain.element_size();
    parts.push_back(
        file.write(layout.zip, planned.entry, offset, plain.data_ptr(), plain.nbytes()));
  }
};

StateWriter::StateWriter(const std::filesystem::path& path, const State& state)
    : impl_(new Impl(path, state)) {}

StateWriter::~StateWriter() = default;

void StateWriter::write(const std::string& name, const at::Tensor& tensor) {
  const StateLayout::Tensor& planned = impl_->find(name, tensor);
  if (tensor.sizes() != at::IntArrayRef(planned.sizes))
    throw Error::format("{}: the tensor {} has the shape [{}] and was to have [{}]",
                        impl_->path.string(), name, fmt::join(tensor.sizes().vec(), ", "),
                        fmt::join(planned.sizes, ", "));
  impl_->write(planned, name, 0, tensor);
}

void StateWriter::write(const std::string& name, int64_t first, const at::Tensor& elements) {
  const StateLayout::Tensor& planned = impl_->find(name, elements);
  const int64_t all = c10::multiply_integers(planned.sizes);
  if (first < 0 || first > all || elements.numel() > all - first)
    throw Error::format("{}: {} elements at {} of the tensor {}, which has {}",
                        impl_->path.string(), elements.numel(), first, name, all);
  impl_->write(planned, name, first, elements);
}

void StateWriter::finish() {
  try {
    impl_->file.finish(impl_->layout.zip, std::move(impl_->parts));
  } catch (const Error& error) {
    throw Error::format("{}: {}", impl_->path.string(), error.what());
  }
}

}  // namespace af::train
