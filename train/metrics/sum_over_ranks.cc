// SPDX-License-Identifier: Apache-2.0
#include "af/train/metrics.h"

#include <ATen/Functions.h>

namespace af::train {

std::vector<double> sum_over_ranks(Communicator& world, std::vector<double> values) {
  if (world.backend() != BackendKind::nccl) {
    world.all_reduce(values.data(), values.data(), values.size(), DataType::f64).synchronize();
    return values;
  }
  // NCCL takes device memory only.
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor host = at::from_blob(values.data(), {count}, at::kDouble);
  const at::Tensor device = host.to(at::kCUDA);
  world.all_reduce(device.data_ptr(), device.data_ptr(), values.size(), DataType::f64)
      .synchronize();
  host.copy_(device);
  return values;
}

}  // namespace af::train
