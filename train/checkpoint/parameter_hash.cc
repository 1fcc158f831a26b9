// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/parameter_hash.h"

#include <ATen/Functions.h>

#include <vector>

#include "train/checkpoint/file_sum.h"
#include "train/checkpoint/state_layout.h"

namespace af::train {
namespace {

// Wraps, as integer sums do; the same on every GPU in whatever order it adds.
at::Tensor sum_of_words(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  const bool words = flat.nbytes() % sizeof(int32_t) == 0 && flat.element_size() <= 4;
  return flat.view(words ? at::kInt : at::kByte).sum(at::kLong);
}

}  // namespace

uint64_t hash_of(const State& state) {
  uint32_t crc = 0;
  std::vector<at::Tensor> sums;
  for (const NamedTensor& one : tensors_of(state)) {
    if (one.tensor.numel() == 0) continue;
    const at::Tensor plain = one.tensor.detach();
    if (plain.device().is_cpu()) {
      const at::Tensor dense = plain.contiguous();
      crc = add_to(crc, dense.data_ptr(), dense.nbytes());
    } else {
      sums.push_back(sum_of_words(plain));
    }
  }
  if (sums.empty()) return crc;
  const at::Tensor all = at::stack(sums).cpu();
  return add_to(crc, all.data_ptr(), all.nbytes());
}

}  // namespace af::train
