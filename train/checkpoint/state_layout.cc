// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/state_layout.h"

#include <ATen/Functions.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

constexpr char kFolder[] = "archive/";

// Types that have a storage class in Python (torch.FloatStorage); for others (float8) torch.load
// needs another kind of reference, which libtorch's pickler does not write.
bool has_storage_class(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

void check_tensor(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) throw Error::format("the state's tensor {} is undefined", name);
  if (tensor.layout() != at::kStrided || !has_storage_class(tensor.scalar_type()))
    throw Error::format(
        "the state's tensor {} is of type {} and layout {}: put it there as a dense tensor of a "
        "type such as float or long",
        name, c10::toString(tensor.scalar_type()),
        tensor.layout() == at::kStrided ? "strided" : "sparse");
}

void collect(const State& state, const std::string& where, std::vector<NamedTensor>& to) {
  for (const auto& entry : state) {
    const std::string name = where + entry.key().toStringRef();
    const c10::IValue& value = entry.value();
    if (value.isTensor()) {
      check_tensor(name, value.toTensor());
      to.push_back({name, value.toTensor()});
    } else if (value.isGenericDict()) {
      collect(value.toGenericDict(), name + "/", to);
    } else if (!value.isInt() && !value.isBool() && !value.isString() && !value.isNone()) {
      throw Error::format(
          "the state's value {} is a {}: not a type that Python's safe loader reads", name,
          value.tagKind());
    }
  }
}

std::vector<int64_t> strides_of(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// For the pickler, which asks for a tensor's storage but never reads it.
at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType type) {
  const auto bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU),
                       nullptr, /*resizable=*/false);
  return at::empty({0}, at::TensorOptions(type)).set_(storage, 0, sizes, strides_of(sizes));
}

// What stands in for a tensor, one for each piece of memory.
class StandIns {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (tensor.is_meta() || tensor.numel() == 0) return make(tensor);
    at::Tensor& known = known_[{tensor.data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
                                tensor.strides().vec()}];
    if (!known.defined()) known = make(tensor);
    return known;
  }

 private:
  const at::Tensor& make(const at::Tensor& tensor) {
    // The pickler numbers what has more than one owner: so all have.
    return all_.emplace_back(without_memory(tensor.sizes(), tensor.scalar_type()));
  }

  using Key = std::tuple<const void*, at::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<Key, at::Tensor> known_;
  std::deque<at::Tensor> all_;
};

State replace(const State& state, StandIns& stand_ins) {
  State result = make_state();
  for (const auto& entry : state) {
    const c10::IValue& value = entry.value();
    const std::string& key = entry.key().toStringRef();
    if (value.isTensor())
      result.insert(key, stand_ins.of(value.toTensor()));
    else if (value.isGenericDict())
      result.insert(key, replace(value.toGenericDict(), stand_ins));
    else
      result.insert(key, value);
  }
  return result;
}

struct Pickle {
  std::string text;
  std::vector<at::Tensor> tensors;  // data/0, data/1, …
};

Pickle pickle(const State& state) {
  Pickle result;
  // Not torch::pickle_save(): it tags each dict with its type, through a function that torch.load
  // refuses to call since weights_only=True is its default (torch 2.6).
  torch::jit::Pickler pickler(
      [&](const char* bytes, size_t count) { result.text.append(bytes, count); }, nullptr, nullptr,
      nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(state);
  pickler.stop();
  result.tensors = pickler.tensorData();
  return result;
}

}  // namespace

std::vector<NamedTensor> tensors_of(const State& state) {
  std::vector<NamedTensor> all;
  collect(state, "", all);
  return all;
}

StateLayout::StateLayout(const State& state) : zip({}) {
  tensors_of(state);  // throws for what cannot be written
  StandIns stand_ins;
  const State planned = replace(state, stand_ins);
  const Pickle pickled = pickle(planned);

  std::vector<ZipLayout::Entry> entries;
  const auto add_text = [&](const std::string& name, const std::string& text) {
    texts.push_back({entries.size(), text});
    entries.push_back({kFolder + name, text.size()});
  };
  add_text("data.pkl", pickled.text);
  add_text("byteorder", "little");
  std::map<const void*, std::size_t> numbers;
  for (const at::Tensor& tensor : pickled.tensors) {
    numbers.emplace(tensor.storage().unsafeGetStorageImpl(), tensors.size());
    tensors.push_back({"", tensor.scalar_type(), tensor.sizes().vec(), entries.size()});
    entries.push_back(
        {fmt::format("{}data/{}", kFolder, tensors.size() - 1), tensor.storage().nbytes(), ""});
  }
  for (const NamedTensor& one : tensors_of(planned)) {
    const std::size_t number = numbers.at(one.tensor.storage().unsafeGetStorageImpl());
    if (tensors[number].name.empty()) {
      tensors[number].name = one.name;
      entries[tensors[number].entry].label = one.name;
    }
    if (!by_name.emplace(one.name, number).second)
      throw Error::format("the state has two tensors that would be named {}", one.name);
  }
  add_text("version", "3\n");
  zip = ZipLayout(std::move(entries));
}

uint32_t StateLayout::fingerprint() const {
  FileSum sum;
  for (const Text& one : texts) sum = join(sum, sum_of(one.text.data(), one.text.size()));
  const std::string directory = zip.directory(std::vector<uint32_t>(zip.entries().size()));
  return join(sum, sum_of(directory.data(), directory.size())).crc32;
}

}  // namespace af::train
