// SPDX-License-Identifier: Apache-2.0
#include "af/train/state_file.h"

#include <ATen/core/jit_type.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"

namespace af::train {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};

// The same state with tensors that stand alone in host memory, so that a slice does not drag its
// whole storage into the file and no device name gets in.
State on_host(const State& state, const std::string& where) {
  State plain = make_state();
  for (const auto& entry : state) {
    const std::string key = entry.key().toStringRef();
    const c10::IValue& value = entry.value();
    if (value.isTensor()) {
      at::Tensor tensor = value.toTensor().detach().cpu().contiguous();
      if (tensor.storage().nbytes() != tensor.nbytes()) tensor = tensor.clone();
      plain.insert(key, tensor);
    } else if (value.isGenericDict()) {
      plain.insert(key, on_host(value.toGenericDict(), where + key + "/"));
    } else if (value.isInt() || value.isBool() || value.isString() || value.isNone()) {
      plain.insert(key, value);
    } else {
      throw Error::format(
          "the state's value {}{} is a {}: not a type that Python's safe loader reads", where, key,
          value.tagKind());
    }
  }
  return plain;
}

// The first line of what libtorch says; the rest is its stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

State make_state() {
  return State(c10::StringType::get(), c10::AnyType::get());
}

void write_state(const std::filesystem::path& path, const State& state) {
  const State plain = on_host(state, "");
  std::unique_ptr<FILE, CloseFile> file(fopen(path.c_str(), "wbe"));
  if (!file) throw errno_error("cannot create " + path.string());
  int failed = 0;  // errno of the first failure: what follows may change it
  const auto put = [&](const void* bytes, size_t count) {
    if (failed == 0 && fwrite(bytes, 1, count, file.get()) != count) failed = errno;
    // Never a short count: the archive's writer would throw from its destructor.
    return count;
  };
  std::vector<char> pickle;
  // Not torch::pickle_save(): it tags each dict with its type, through a function that torch.load
  // refuses to call since weights_only=True is its default (torch 2.6).
  torch::jit::Pickler pickler(
      [&](const char* bytes, size_t count) { pickle.insert(pickle.end(), bytes, bytes + count); },
      nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(plain);
  pickler.stop();
  try {
    caffe2::serialize::PyTorchStreamWriter archive(put);
    torch::jit::writeArchiveAndTensors("data", pickle.data(), pickle.size(), pickler.tensorData(),
                                       archive);
    archive.writeEndOfFile();
  } catch (const std::exception& error) {
    throw Error::format("cannot write {}: {}", path.string(), first_line(error));
  }
  if (failed == 0 && fflush(file.get()) != 0) failed = errno;
  if (failed != 0) {
    errno = failed;
    throw errno_error("cannot write " + path.string());
  }
}

State read_state(const std::filesystem::path& path) {
  c10::IValue value;
  try {
    caffe2::serialize::PyTorchStreamReader archive(path.string());
    value = torch::jit::readArchiveAndTensors("data", "", "", c10::nullopt, c10::nullopt,
                                              c10::nullopt, archive);
    if (value.isGenericDict()) return value.toGenericDict();
  } catch (const std::exception& error) {
    throw Error::format(
        "cannot read {}: {} (if Python wrote it: it must hold plain dicts, as in "
        "torch.save({{\"model\": dict(model.state_dict())}}, path))",
        path.string(), first_line(error));
  }
  throw Error::format("cannot read {}: it holds a {} and not a dict", path.string(),
                      value.tagKind());
}

}  // namespace af::train
