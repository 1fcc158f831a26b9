// SPDX-License-Identifier: Apache-2.0
// The models of equality_models.h trained by DistributedDataParallel.
#pragma once

#include <torch/optim/adam.h>

#include "af/communicator.h"
#include "af/train/distributed_data_parallel.h"
#include "tests/unit/train_parallel/equality_models.h"

namespace af::train::test {

// Collective: every rank on its share, stock Adam as train_alone() has it. Buckets of so few bytes
// that a model has several.
inline Values train_ddp(const EqualityCase& one, Communicator& world, int64_t steps,
                        std::size_t bucket_bytes = 1000) {
  const auto model = one.make();
  DistributedDataParallelOptions options;
  options.first_bucket_bytes = bucket_bytes;
  options.bucket_bytes = 2 * bucket_bytes;
  DistributedDataParallel ddp(*model, world, options);
  torch::optim::Adam adam(model->parameters());
  for (int64_t step = 0; step < steps; ++step) {
    const Batch mine = one.share(step, world.rank(), world.world_size());
    ddp.zero_grad();
    ddp.backward(one.loss(model->forward(mine.x), mine.y), mine.rows());
    adam.step();
  }
  return values_of(*model);
}

}  // namespace af::train::test
