// SPDX-License-Identifier: Apache-2.0
// The gradients of a model in flat buckets that are reduced over the ranks.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "af/communicator.h"
#include "af/world.h"

namespace af::train {

class ReplicaBuckets {
 public:
  // Throws af::Error for a parameter whose type cannot be averaged.
  ReplicaBuckets(const torch::nn::Module& model, std::size_t bucket_bytes);

  // Memory for the buckets, also in place of what there is: gradients are carried over. Collective.
  // `kept`: reduce() leaves the rank's own gradients as they are, so that it can be called again in
  // another world; takes the memory twice. Throws CommunicatorError; then all is as before.
  void allocate(Communicator& world, bool kept);

  // Zeros, in the views.
  void zero();

  // What is summed up beside the gradients: rows, their losses, and how many ranks ask for what.
  struct Sums {
    double samples = 0;
    double loss = 0;
    bool change = false;
    bool save = false;
  };
  // The gradients of `samples` rows of this rank, with the mean loss `loss`, to the mean over all
  // rows of all ranks. Collective; throws CommunicatorError.
  Sums reduce(Communicator& world, int64_t samples, double loss, WorldFlags flags);
  // The parameters' gradients are those that reduce() has made, until the next zero().
  void show_reduced();

  // The values of the parameters in the buckets, from rank 0 to all.
  void broadcast_parameters(Communicator& world);

  // For tests: called on this thread after a reduction; what it throws is as if the reduction had
  // failed on this rank and not on others.
  static thread_local std::function<void()> after_reduction;

  bool empty() const { return buckets_.empty(); }

 private:
  struct Side {
    Buffer memory;
    at::Tensor flat;                    // all of it, with the sums at its end
    std::vector<at::Tensor> gradients;  // views with the parameters' shapes
  };
  struct Bucket {
    std::vector<at::Tensor> parameters;
    std::vector<int64_t> offsets;
    int64_t elements = 0;  // without the sums
    DataType type = DataType::f32;
    Side own;
    Side reduced;  // the same as `own` where that is not kept
  };
  static Side make_side(Communicator& world, const Bucket& bucket);
  void attach();

  std::vector<Bucket> buckets_;
};

}  // namespace af::train
