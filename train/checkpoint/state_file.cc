// SPDX-License-Identifier: Apache-2.0
#include "af/train/state_file.h"

#include <ATen/core/jit_type.h>

#include "af/train/state_writer.h"
#include "train/checkpoint/state_layout.h"
#include "train/checkpoint/state_pickle.h"

namespace af::train {

State make_state() {
  return State(c10::StringType::get(), c10::AnyType::get());
}

void write_state(const std::filesystem::path& path, const State& state) {
  StateWriter writer(path, state);
  for (const NamedTensor& one : tensors_of(state)) writer.write(one.name, one.tensor);
  writer.finish();
}

State read_state(const std::filesystem::path& path) {
  return unpickle_all(path);
}

}  // namespace af::train
