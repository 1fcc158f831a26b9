// SPDX-License-Identifier: Apache-2.0
// The models of equality_models.h as sharded ones, each part a unit.
#pragma once

#include <torch/optim/adam.h>

#include <string>
#include <vector>

#include "af/train/fully_sharded_data_parallel.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/train_parallel/equality_models.h"

namespace af::train::test {

using af::test::one_node;
using af::test::separate_nodes;
using af::test::with_threads;

// However small: the models of tests are.
inline FullyShardedOptions any_size() {
  FullyShardedOptions options;
  options.smallest_unit_bytes = 0;
  return options;
}

inline FullyShardedOptions by_parts(const Chain& model) {
  FullyShardedOptions options = any_size();
  options.units = units_of<PartImpl>(model);
  return options;
}

inline at::Tensor forward_units(const Chain& model, at::Tensor x) {
  for (const Part& part : model.parts) x = run_unit(*part, [&] { return part->forward(x); });
  return x;
}

// Collective.
inline Values whole_values(FullyShardedDataParallel& fsdp) {
  Values values;
  fsdp.for_each_parameter([&](const std::string& name, const at::Tensor& whole) {
    values[name] = whole.detach().clone();
  });
  return values;
}

// A step on this rank's share of the batch.
inline FullyShardedDataParallel::Result sharded_step(FullyShardedDataParallel& fsdp, Chain& model,
                                                     const EqualityCase& one, const Batch& mine,
                                                     torch::optim::Optimizer& optimizer) {
  const at::Tensor loss =
      fsdp.forward([&] { return one.loss(forward_units(model, mine.x), mine.y); });
  const auto result = fsdp.backward(loss, mine.rows());
  optimizer.step();
  return result;
}

}  // namespace af::train::test
