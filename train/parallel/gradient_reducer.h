// SPDX-License-Identifier: Apache-2.0
// The gradients of a model in flat buckets that are reduced over the ranks, while backward still
// makes those of the next buckets.
//
//   reducer.allocate(world, kept, 0);                  // collective
//   reducer.zero();
//   reducer.expect(world, {samples});                  // the next backward is the step's last
//   loss.backward();                                   // buckets go as they become complete
//   reducer.finish(world, {samples, samples, loss});   // collective: the rest, waits for all
//   reducer.apply_scale();                             // or leave it to a flat optimizer
//
// The reducer of PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020)
// with gradients that live in memory from Communicator::allocate(), and a mean over samples: a rank
// with half the rows weighs half, and one without rows takes part with zeros.
//
// Order. finish() and allocate() are the same calls on all ranks. What hooks launch is a beginning
// of what finish() launches where there were no hooks: buckets go by index, so a rank that calls no
// backward matches one that does. The last bucket always goes in finish(), on the calling thread;
// a model of one bucket takes one operation in a step.
//
// Threads. Hooks run where autograd runs them, all else on one thread.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "af/train/gradient_buckets.h"
#include "af/world.h"
#include "train/parallel/bucket_memory.h"
#include "train/parallel/bucket_plan.h"
#include "train/parallel/bucket_progress.h"
#include "train/parallel/gradient_hooks.h"
#include "train/parallel/step_sums.h"

namespace af::train {

class GradientReducer {
 public:
  // A parameter that got no gradient on a rank that had samples:
  enum class Unused {
    zero,    // has a gradient of zeros there
    refuse,  // is an error, on all ranks
    detect,  // likewise zeros; without a gradient on any rank it stays without one
  };
  struct Options {
    BucketLimits limits;
    Unused unused = Unused::zero;
    // Gradients travel as at::kHalf or at::kBFloat16.
    std::optional<at::ScalarType> compression;
  };
  // Throws af::Error for a parameter whose type cannot be averaged.
  GradientReducer(const torch::nn::Module& model, Options options);

  // Memory for the buckets, also in place of what there is, in the layout that rank `layout_root`
  // has; gradients are carried over. Collective. `kept`: finish() leaves the rank's own gradients
  // as they are until it has worked, so that it can be called again in another world; takes the
  // memory twice. Throws CommunicatorError; then all is as before.
  void allocate(Communicator& world, bool kept, int layout_root);

  // The parameters have no gradients; backward makes them.
  void zero();

  // This rank's part in a step.
  struct Share {
    int64_t samples = 0;
    // What its gradients count: `samples`, but for sums of several backward passes.
    double weight = 0;
    double loss = 0;  // mean over the samples
  };
  // The next backward completes the gradients of a share with this weight. Without this call, they
  // are reduced in finish().
  void expect(Communicator& world, double weight);
  // Takes expect() back, where nothing has been launched yet.
  void forget();

  // The gradients become sums over all ranks, which gradients().scale times are the mean over all
  // samples. Collective. Throws CommunicatorError, af::Error.
  StepSums finish(Communicator& world, const Share& share, WorldFlags flags);

  // What finish() has made; the parameters' grad() are those, until the next zero().
  GradientBuckets& gradients() { return reduced_; }

  // For tests: called on this thread after a reduction; what it throws is as if the reduction had
  // failed on this rank and not on others.
  static thread_local std::function<void()> after_reduction;

  bool empty() const { return parameters_.empty(); }
  std::size_t buckets() const { return plan_.size(); }
  // Buckets that were launched by hooks in the last step, for tests.
  std::size_t launched_by_hooks() const { return launched_by_hooks_; }

 private:
  struct Bucket {
    std::vector<at::Tensor> parameters;
    int64_t elements = 0;  // without the sums
    DataType wire = DataType::f32;
    BucketMemory own;
    BucketMemory reduced;  // the same as `own` where that is not kept
    BucketMemory narrow;   // what travels, if that is of another type
    Work pending;
    int64_t traced_since = 0;  // trace_now() of its start; 0: not traced, or seen to be done
  };
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  // layout
  std::vector<std::size_t> agree_on_order(Communicator& world, int root,
                                          const std::vector<std::size_t>& mine,
                                          bool& rebuilt) const;
  std::vector<Bucket> make_buckets(Communicator& world, const std::vector<BucketPlan>& plan,
                                   bool kept) const;
  void adopt(std::vector<BucketPlan> plan, std::vector<Bucket> buckets);
  std::vector<std::size_t> arrived_order() const;
  void rebuild(Communicator& world);
  bool travels_apart() const;

  // a step
  void on_ready(std::size_t parameter) noexcept;
  void take_gradient(std::size_t parameter);
  void launch(Communicator& world, std::size_t bucket, double factor, bool blocking);
  void trace_done();
  void complete_gradients(StepPart& part);
  bool wants_rebuild(const StepPart& part);
  StepSums reduce_all(Communicator& world, const Share& share, const StepPart& part);
  StepSums reduce_apart(Communicator& world, const StepPart& part) const;
  void write_sums(const std::vector<double>& numbers);
  std::vector<double> read_sums() const;
  void widen();
  void show(const StepSums& sums);
  void end_step();
  void check_expected(const Share& share) const;
  void check_unused(const StepSums& sums, const StepPart& part) const;

  double reference() const { return reference_ == 0 ? 1 : reference_; }

  const Options options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;  // that need a gradient
  std::vector<ParameterShape> shapes_;
  std::vector<DataType> types_;

  std::mutex mutex_;  // hooks against each other and against the calls
  std::vector<std::size_t> order_;
  std::vector<BucketPlan> plan_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter
  GradientBuckets reduced_;
  bool kept_ = false;
  bool travels_apart_ = false;  // the sums, on their own

  BucketProgress progress_;
  Communicator* expected_by_ = nullptr;
  double expected_weight_ = 0;
  std::exception_ptr failure_;  // of a hook
  std::size_t launched_by_hooks_ = 0;
  double reference_ = 0;              // see reference_for(); 0: not known yet
  bool rebuilt_ = false;              // or it has turned out that there is no need
  std::vector<std::size_t> arrived_;  // in order, each once
  std::vector<char> has_arrived_;

  GradientHooks hooks_;  // last: they use the rest
};

}  // namespace af::train
