// SPDX-License-Identifier: Apache-2.0
// Keeps the copies of a model on all ranks the same: every rank computes gradients on its share of
// a batch, and all take the same step with the gradient of the whole batch.
//
//   af::Communicator world = af::Communicator::from_environment();
//   af::train::DataParallel replicas(*model, world);     // now all have rank 0's parameters
//   for (…) {
//     replicas.zero_grad();
//     loss = cross_entropy(model->forward(x), y);        // the mean over this rank's rows
//     loss.backward();
//     replicas.average_gradients(x.size(0));
//     optimizer.step();
//   }
//
// Gradients are views of flat buckets in memory from Communicator::allocate(), which the backend
// reduces in place: no copy into or out of a bucket.
//
// The mean is over samples, not over ranks: shares of different sizes, also of no row at all, give
// exactly the gradient of the mean loss over the whole batch, at any world size.
//
// Use from one thread. All ranks construct it and call its methods in the same order. Errors:
// af::Error (naming ranks that differ), CommunicatorError from the collectives.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "af/communicator.h"
#include "af/export.h"

namespace af::train {

struct DataParallelOptions {
  // A bucket is closed when it has at least so many bytes. Parameters go in reverse order.
  std::size_t bucket_bytes = std::size_t{25} << 20;
};

class AF_PUBLIC DataParallel {
 public:
  // Checks that all ranks have the same parameters by name, shape and type, and broadcasts rank 0's
  // values, buffers (batch norm's means) included. All parameters that need a gradient must be f32
  // or f64. `model` and `world` must outlive this object; no parameter may be added or moved to
  // another device afterwards.
  DataParallel(torch::nn::Module& model, Communicator& world, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // In place of Optimizer::zero_grad(), which in libtorch 1.13 throws on views, and in 2.x would
  // drop the views.
  void zero_grad();

  // After backward(). `samples`: the rows that this rank's loss is the mean of, 0 if it had none
  // (then it need not call backward, and what its gradients hold does not matter).
  // Returns the number of samples over all ranks.
  int64_t average_gradients(int64_t samples);

  // Rank 0's parameters and buffers to all, e.g. after a checkpoint was loaded there.
  void broadcast_parameters();

  // Compares a checksum of parameters and buffers over all ranks; throws af::Error, the same on all
  // of them, naming those that differ from rank 0.
  void check_agreement();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
