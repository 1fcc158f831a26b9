// SPDX-License-Identifier: Apache-2.0
#include "af/train/metrics.h"

namespace af::train {

std::vector<double> sum_over_ranks(Communicator& world, std::vector<double> values) {
  world.all_reduce(values.data(), values.data(), values.size(), DataType::f64).synchronize();
  return values;
}

}  // namespace af::train
