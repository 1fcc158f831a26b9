// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/state_pickle.h"

#include <ATen/Functions.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

using Archive = caffe2::serialize::PyTorchStreamReader;

// The first line of what libtorch says; the rest is its stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Runs `unpickle` on the file and says what is wrong with it.
template <typename Unpickle>
auto with_archive(const std::filesystem::path& path, const Unpickle& unpickle) {
  try {
    Archive archive(path.string());
    return unpickle(archive);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error::format(
        "cannot read {}: {} (if Python wrote it: it must hold plain dicts, as in "
        "torch.save({{\"model\": dict(model.state_dict())}}, path))",
        path.string(), first_line(error));
  }
}

State dict_of(const std::filesystem::path& path, const c10::IValue& value) {
  if (value.isGenericDict()) return value.toGenericDict();
  throw Error::format("cannot read {}: it holds a {} and not a dict", path.string(),
                      value.tagKind());
}

// A storage without memory that remembers the name of its record.
at::DataPtr remember(const std::string& record) {
  return at::DataPtr(
      nullptr, new std::string(record), [](void* name) { delete static_cast<std::string*>(name); },
      at::kCPU);
}

c10::IValue unpickle(const at::DataPtr& text, std::size_t bytes) {
  const char* next = static_cast<const char*>(text.get());
  std::size_t left = bytes;
  torch::jit::Unpickler unpickler(
      [&](char* to, std::size_t wanted) {
        const std::size_t n = std::min(wanted, left);
        std::memcpy(to, next, n);
        next += n;
        left -= n;
        return n;
      },
      nullptr, nullptr, remember, at::Device(at::kCPU));
  return unpickler.parse_ivalue();
}

class Lister {
 public:
  Lister(Archive& archive, std::vector<StoredTensor>& found) : archive_(archive), found_(found) {}

  State list(const State& state, const std::string& where) {
    State result(state.keyType(), c10::AnyType::get());
    for (const auto& entry : state) {
      const c10::IValue& key = entry.key();
      const c10::IValue& value = entry.value();
      const std::string name = where + (key.isString() ? key.toStringRef() : "");
      if (value.isTensor())
        result.insert(key, list(value.toTensor(), key.isString() ? name : ""));
      else if (value.isGenericDict())
        result.insert(key, list(value.toGenericDict(), name + "/"));
      else
        result.insert(key, value);
    }
    return result;
  }

 private:
  at::Tensor list(const at::Tensor& tensor, const std::string& name) {
    StoredTensor one;
    one.name = name;
    one.shape = at::empty_strided(tensor.sizes(), tensor.strides(),
                                  at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
    const auto* record = static_cast<const std::string*>(tensor.storage().data_ptr().get_context());
    if (record != nullptr)  // one without elements has none
      one.offset = archive_.getRecordOffset("data/" + *record) +
                   static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size();
    if (!name.empty()) found_.push_back(one);
    return one.shape;
  }

  Archive& archive_;
  std::vector<StoredTensor>& found_;
};

}  // namespace

State unpickle_all(const std::filesystem::path& path) {
  return dict_of(path, with_archive(path, [](Archive& archive) {
                   return torch::jit::readArchiveAndTensors(
                       "data", "", "", c10::nullopt, c10::nullopt, at::Device(at::kCPU), archive);
                 }));
}

StoredState unpickle_shapes(const std::filesystem::path& path) {
  return with_archive(path, [&](Archive& archive) {
    const auto [text, bytes] = archive.getRecord("data.pkl");
    StoredState stored{make_state(), {}};
    stored.state = Lister(archive, stored.tensors).list(dict_of(path, unpickle(text, bytes)), "");
    return stored;
  });
}

}  // namespace af::train
