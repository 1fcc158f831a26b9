// SPDX-License-Identifier: Apache-2.0
// Writes a state.pt tensor by tensor: for a state that is never in memory as a whole.
//
//   af::train::State state = af::train::make_state();          // the file's dicts
//   state.insert("step", step);
//   af::train::State model = af::train::make_state();
//   for (…) model.insert(name, af::train::tensor_to_write(sizes, at::kFloat));   // no memory
//   state.insert("model", model);
//   af::train::StateWriter writer("state.pt", state);
//   for (…) writer.write("model/" + name, gathered);           // in any order
//   writer.finish();
//
// A tensor's name is its keys from the outermost dict on, with "/" between. Where everything lies
// in the file is planned from names, types and shapes before the first tensor comes, so nothing is
// kept but the tensor in hand. The file is the one that write_state() writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "af/export.h"
#include "af/train/state_file.h"

namespace af::train {

// A tensor with a shape and a type and no memory (device meta).
AF_PUBLIC at::Tensor tensor_to_write(at::IntArrayRef sizes, at::ScalarType type);

// Use from one thread. Errors: af::Error with the path or the tensor's name.
class AF_PUBLIC StateWriter {
 public:
  // Plain values are written from `state`. Of its tensors only shapes and types count: write() each
  // of them. Makes the file; it is no archive before finish(). Not atomic: see checkpoint.h.
  StateWriter(const std::filesystem::path& path, const State& state);
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  // All of a tensor, of the shape and type it has in the state; from any device, views too. In the
  // file when this returns: it may change then. (Two names of the same memory are one tensor there:
  // writing the second name does nothing.)
  void write(const std::string& name, const at::Tensor& tensor);
  // Elements `first` … of a tensor, flat in row-major order: all of `elements`, of any shape.
  void write(const std::string& name, int64_t first, const at::Tensor& elements);

  // Throws af::Error, naming one, if tensors lack elements or have some twice.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
