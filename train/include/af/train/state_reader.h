// SPDX-License-Identifier: Apache-2.0
// Reads a state.pt tensor by tensor: for a state that does not fit into memory, or of which only a
// part is wanted.
//
//   const af::train::StateReader reader("state.pt");
//   for (const auto& one : reader.tensors()) …one.name, one.sizes…       // nothing read yet
//   reader.read("model/0.weight", parameter);                            // into a tensor
//   reader.read("model/0.weight", first, count, shard.data_ptr());       // a range of it
//   const int64_t step = reader.state().at("step").toInt();
//
// A tensor's name is its keys from the outermost dict on, with "/" between. Reads what
// write_state() and StateWriter wrote, and what Python wrote under the conditions of read_state().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "af/export.h"
#include "af/train/state_file.h"

namespace af::train {

// The methods may be called from several threads. Errors: af::Error with path and tensor.
class AF_PUBLIC StateReader {
 public:
  explicit StateReader(const std::filesystem::path& path);
  ~StateReader();
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  struct Tensor {
    std::string name;
    at::ScalarType type;
    std::vector<int64_t> sizes;
  };
  // Those in dicts with keys of strings, in the order of the file.
  const std::vector<Tensor>& tensors() const;
  bool contains(const std::string& name) const;
  // Throws if there is none.
  const Tensor& tensor(const std::string& name) const;

  // The dicts and plain values; the tensors in it have shapes and types and no memory (device
  // meta).
  const State& state() const;

  // In host memory.
  at::Tensor read(const std::string& name) const;
  // Into a tensor of the same shape and type, on any device.
  void read(const std::string& name, const at::Tensor& into) const;
  // Elements `first` to `first + count`, flat in row-major order, into host memory. Reads no other
  // bytes (but for a tensor that Python saved transposed or the like: all of that).
  void read(const std::string& name, int64_t first, int64_t count, void* to) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
