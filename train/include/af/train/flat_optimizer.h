// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW in one pass over parameter, gradient and moments.
//
//   af::train::FlatAdam adam(model->parameters(), torch::optim::AdamOptions(1e-3));
//   ...
//   replicas.step(rows->size(), loss, adam);
//
// Each is the optimizer of libtorch that it derives from, with another step(): options, parameter
// groups, learning rates and state are libtorch's, so that a checkpoint of one goes on with the
// other. The numbers are those of libtorch up to rounding (f64: within 1e-12 after 100 steps); on
// host memory they are the same bits on every CPU and with every number of threads.
//
// Moments lie in one block of memory for all parameters of a type and device. In host memory (f32,
// f64) a loop of the CPU's widest vectors reads gradient, parameter and moments once and writes
// them once, where libtorch goes over memory about ten times; with more than one thread of torch
// (at::get_num_threads) they share it. Elsewhere ATen's operations on lists of tensors do it.
//
// A factor for the gradients comes at no cost: the mean over samples, the unscaling of mixed
// precision and clipping are multiplied into it instead of going over the gradients once each.
//
// Parameters without a gradient are passed over. amsgrad and sparse gradients are refused
// (af::Error): libtorch's own optimizers take them. Use from one thread.
#pragma once

#include <ATen/core/ivalue.h>  // first: with clang the others need it complete
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

#include "af/export.h"
#include "af/train/gradient_buckets.h"

namespace af::train {

class FlatMoments;  // internal

// What the three have in common.
class AF_PUBLIC FlatOptimizer {
 public:
  FlatOptimizer(const FlatOptimizer&) = delete;
  FlatOptimizer& operator=(const FlatOptimizer&) = delete;
  virtual ~FlatOptimizer();

  // The next step takes the gradients times `factor`, and leaves them as they are. Several factors
  // multiply; after a step it is 1 again.
  void scale_gradients(double factor) { factor_ *= factor; }
  double gradient_factor() const { return factor_; }
  // Forgets the factor: for a step that is not taken.
  void reset_gradient_factor() { factor_ = 1; }
  // What the next step needs to know of reduced gradients: multiplies by their scale, and passes
  // over parameters that no rank has used.
  void use(const GradientBuckets& all);

 protected:
  FlatOptimizer();
  FlatMoments& moments() { return *moments_; }

 private:
  double factor_ = 1;
  std::unique_ptr<FlatMoments> moments_;
};

class AF_PUBLIC FlatAdam : public torch::optim::Adam, public FlatOptimizer {
 public:
  explicit FlatAdam(std::vector<torch::optim::OptimizerParamGroup> groups,
                    const torch::optim::AdamOptions& defaults = {});
  explicit FlatAdam(std::vector<at::Tensor> parameters,
                    const torch::optim::AdamOptions& defaults = {});
  at::Tensor step(LossClosure closure = nullptr) override;
};

class AF_PUBLIC FlatAdamW : public torch::optim::AdamW, public FlatOptimizer {
 public:
  explicit FlatAdamW(std::vector<torch::optim::OptimizerParamGroup> groups,
                     const torch::optim::AdamWOptions& defaults = {});
  explicit FlatAdamW(std::vector<at::Tensor> parameters,
                     const torch::optim::AdamWOptions& defaults = {});
  at::Tensor step(LossClosure closure = nullptr) override;
};

class AF_PUBLIC FlatSgd : public torch::optim::SGD, public FlatOptimizer {
 public:
  explicit FlatSgd(std::vector<torch::optim::OptimizerParamGroup> groups,
                   const torch::optim::SGDOptions& defaults);
  explicit FlatSgd(std::vector<at::Tensor> parameters, const torch::optim::SGDOptions& defaults);
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace af::train
