// SPDX-License-Identifier: Apache-2.0
#include "af/train/state_reader.h"

#include <ATen/Functions.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "common/error.h"
#include "common/unique_fd.h"
#include "train/checkpoint/state_pickle.h"

namespace af::train {
namespace {

// Elements from the first to the last one, those between that are not the tensor's included.
int64_t extent_of(const at::Tensor& shape) {
  if (shape.numel() == 0) return 0;
  int64_t extent = 1;
  for (int64_t i = 0; i < shape.dim(); ++i) extent += (shape.size(i) - 1) * shape.stride(i);
  return extent;
}

}  // namespace

struct StateReader::Impl {
  std::filesystem::path path;
  UniqueFd fd;
  StoredState stored;
  std::vector<Tensor> tensors;
  std::map<std::string, std::size_t> by_name;

  std::size_t find(const std::string& name) const {
    const auto found = by_name.find(name);
    if (found == by_name.end()) throw Error::format("{} has no tensor {}", path.string(), name);
    return found->second;
  }

  void read_at(uint64_t offset, void* to, uint64_t bytes) const {
    char* next = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t n = ::pread(fd.get(), next, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw errno_error("cannot read " + path.string());
      if (n == 0) throw Error::format("cannot read {}: it ends in a tensor", path.string());
      next += n;
      offset += static_cast<uint64_t>(n);
      bytes -= static_cast<uint64_t>(n);
    }
  }

  // As it lies in the file.
  at::Tensor read_strided(const StoredTensor& one) const {
    const at::Tensor flat =
        at::empty({extent_of(one.shape)}, at::TensorOptions(one.shape.scalar_type()));
    read_at(one.offset, flat.data_ptr(), flat.nbytes());
    return flat.as_strided(one.shape.sizes(), one.shape.strides());
  }
};

StateReader::StateReader(const std::filesystem::path& path)
    : impl_(new Impl{path, {}, unpickle_shapes(path), {}, {}}) {
  impl_->fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!impl_->fd) throw errno_error("cannot read " + path.string());
  for (const StoredTensor& one : impl_->stored.tensors) {
    impl_->by_name.emplace(one.name, impl_->tensors.size());
    impl_->tensors.push_back({one.name, one.shape.scalar_type(), one.shape.sizes().vec()});
  }
}

StateReader::~StateReader() = default;

const std::vector<StateReader::Tensor>& StateReader::tensors() const {
  return impl_->tensors;
}

bool StateReader::contains(const std::string& name) const {
  return impl_->by_name.count(name) != 0;
}

const StateReader::Tensor& StateReader::tensor(const std::string& name) const {
  return impl_->tensors[impl_->find(name)];
}

const State& StateReader::state() const {
  return impl_->stored.state;
}

at::Tensor StateReader::read(const std::string& name) const {
  return impl_->read_strided(impl_->stored.tensors[impl_->find(name)]).contiguous();
}

void StateReader::read(const std::string& name, const at::Tensor& into) const {
  const StoredTensor& one = impl_->stored.tensors[impl_->find(name)];
  if (into.sizes() != one.shape.sizes() || into.scalar_type() != one.shape.scalar_type())
    throw Error::format("{}: {} is a {} of the shape [{}], to be read into a {} of [{}]",
                        impl_->path.string(), name, c10::toString(one.shape.scalar_type()),
                        fmt::join(one.shape.sizes().vec(), ", "), c10::toString(into.scalar_type()),
                        fmt::join(into.sizes().vec(), ", "));
  if (into.device().is_cpu() && into.is_contiguous() && one.shape.is_contiguous())
    return impl_->read_at(one.offset, into.data_ptr(), into.nbytes());
  const at::NoGradGuard no_grad;
  into.detach().copy_(impl_->read_strided(one));
}

void StateReader::read(const std::string& name, int64_t first, int64_t count, void* to) const {
  const StoredTensor& one = impl_->stored.tensors[impl_->find(name)];
  const int64_t all = one.shape.numel();
  if (first < 0 || count < 0 || first > all || count > all - first)
    throw Error::format("{}: elements {} to {} of {}, which has {}", impl_->path.string(), first,
                        first + count, name, all);
  const uint64_t size = one.shape.element_size();
  const uint64_t bytes = static_cast<uint64_t>(count) * size;
  const uint64_t skipped = static_cast<uint64_t>(first) * size;
  if (one.shape.is_contiguous()) return impl_->read_at(one.offset + skipped, to, bytes);
  const at::Tensor plain = impl_->read_strided(one).contiguous();
  std::memcpy(to, static_cast<const char*>(plain.data_ptr()) + skipped, bytes);
}

}  // namespace af::train
