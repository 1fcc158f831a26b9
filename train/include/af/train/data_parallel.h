// SPDX-License-Identifier: Apache-2.0
// Keeps the copies of a model on all ranks the same: every rank computes gradients on its share of
// a batch, and all take the same step with the gradient of the whole batch. The ranks may become
// fewer and more meanwhile; the program does not notice.
//
//   af::World world = af::World::from_environment();
//   af::train::DataParallel replicas(*model, world);
//   replicas.keep("optimizer", adam);
//   replicas.keep("data", dealer);
//   replicas.save_with(saver);
//   replicas.resume();                        // goes on from the newest checkpoint, if any
//   replicas.begin();                         // now all ranks have the same of everything
//   for (int64_t epoch = dealer.epoch(); epoch < epochs; ++epoch) {
//     while (const auto rows = replicas.next(epoch)) {
//       replicas.zero_grad();
//       at::Tensor loss;
//       if (!rows->empty()) {                 // the mean over this rank's rows
//         loss = cross_entropy(model->forward(x(*rows)), y(*rows));
//         loss.backward();
//       }
//       replicas.step(rows->size(), loss, adam);
//     }
//     const auto right = replicas.sum([&](int rank, int world) { return test(rank, world); });
//     replicas.checkpoint();
//   }
//   replicas.finish();
//
// Gradients lie in flat buckets in memory from Communicator::allocate(), which the backend reduces
// without a copy into or out of a bucket. The mean is over samples, not over ranks: shares of
// different sizes, also of no row at all, give exactly the gradient of the mean loss over the whole
// batch, at any world size.
//
// Where the samples of a step are known before its backward (the rows of next(), or
// zero_grad(samples)), all buckets but the last are reduced while backward goes on with the others.
// Then step() takes the same number, and a step of several backward passes runs all but the last
// one under no_sync().
//
// When the world changes
// - A rank that is lost in mid-step: step() goes to the next world with the ranks that are left and
//   reduces again what they have, of as many samples fewer; the rows come at the epoch's end.
// - A rank that had not got the result when others had takes no step of its own: it gets the state
//   from one of those. step() and sum() return there what they returned on the others.
// - A rank that comes gets everything from the others in begin().
// - What is planned (notice, growth) happens in next(), or zero_grad() without a dealer, or another
//   call for all ranks, behind a step that all have completed. Growth happens behind a
//   checkpoint().
// - A rank that is not in the next world ends in such a call, with exit code 0; so do all, behind a
//   checkpoint, when the whole job ends.
// Only a failure of the program itself, or the loss of the launcher, ends in an exception.
//
// A rank that comes begins at next(), and finds there the results of the calls for all ranks that
// the others have made at the end of the epoch. Within an epoch it cannot know of them: a sum() or
// checkpoint() between two steps that is interrupted by a loss, just when another rank comes, makes
// the launcher start all ranks from the last checkpoint.
//
// Use from one thread. All ranks make the same calls in the same order. Errors: af::Error (naming
// ranks that differ), CommunicatorError from a world that cannot change.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "af/export.h"
#include "af/train/background_saver.h"
#include "af/train/checkpoint.h"
#include "af/train/data_order.h"
#include "af/train/dealer.h"
#include "af/train/no_sync.h"
#include "af/train/state_file.h"
#include "af/world.h"

namespace af::train {

class Callbacks;

struct DataParallelOptions {
  // A bucket is closed when it has at least so many bytes, or a sixteenth of the model.
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Called on every rank that goes on, when another world has been formed: its size before and now.
  std::function<void(int before, int now)> changed;
  // Ends a rank that is not needed any more. By default: flushes C's streams, exit code 0.
  std::function<void()> leave;
  // The first bucket's limit: small, so that it goes early; the last one's too, for which nothing
  // is left to hide it. The next ones have twice the limit of the one before.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  // at::kHalf or at::kBFloat16: gradients travel in 16 bits (see DistributedDataParallelOptions).
  std::optional<at::ScalarType> compression;
  // Called for start (begin(), or the first step), step, epoch, world change and end; must outlive
  // the DataParallel. What was saved its BackgroundSaver says, what is reported the program.
  Callbacks* callbacks = nullptr;
};

class AF_PUBLIC DataParallel {
 public:
  // A world of a fixed size. Checks that all ranks have the same parameters by name, shape and
  // type, and broadcasts rank 0's values, buffers (batch norm's means) included: ready without
  // begin(). All parameters that need a gradient must be f64, f32, f16 or bf16. `model` and `world`
  // must outlive this object; no parameter may be added or moved to another device afterwards.
  DataParallel(torch::nn::Module& model, Communicator& world, DataParallelOptions options = {});
  // A world that may change. Nothing is communicated before begin().
  DataParallel(torch::nn::Module& model, World& world, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // What makes up the training's state beside the model: sent to ranks that lack it, and saved in
  // checkpoints under `name`. Before begin(), the same on all ranks; all must outlive this object.
  // Optimizers: Adam, AdamW, SGD; learning rates are not part of it. One dealer at most.
  // Values of the program's own (sums of an epoch, a best result) must change in the same way on
  // all ranks, between the calls here.
  void keep(const std::string& name, torch::optim::Optimizer& optimizer);
  void keep(const std::string& name, DataOrder& dealer);
  void keep(const std::string& name, const at::Tensor& values);
  void keep(const std::string& name, int64_t& value);
  // Anything else that a State can hold.
  void keep(const std::string& name, std::function<c10::IValue()> get,
            std::function<void(const c10::IValue&)> set);
  // Give all ranks one, for the same directory: they save with it, here in checkpoint() and when
  // the whole job ends.
  void save_with(BackgroundSaver& saver);

  // {"step": …, "model": {…}, NAME: …}; tensors are the training's own, not copies.
  State state() const;
  // Throws af::Error, naming it, if something is missing or has another shape.
  void load(const State& state);
  // Loads the newest good checkpoint of the saver, and returns it. Every rank by itself, before
  // begin(): where they find different ones, the one with the most steps counts.
  std::optional<Checkpoint> resume();

  void begin();

  // The rows of this rank in the next step, possibly none; nothing when the epoch is over.
  std::optional<std::vector<int64_t>> next(int64_t epoch);

  // The parameters have no gradients; the next backward makes them. `samples`: what step() will be
  // called with, where it is not the number of rows of next() (tokens, say) or there is no dealer.
  void zero_grad(std::optional<int64_t> samples = std::nullopt);

  // While it lives, backward passes add up gradients and reduce nothing. As gradients of one loss:
  // each pass's loss divided so that all together are the mean over the samples of step().
  NoSync no_sync();

  // Of all ranks together, the same on all.
  struct StepResult {
    int64_t samples = 0;
    double loss = 0;  // mean over the samples; 0 if there are none
  };
  // After backward(): the gradients become those of the whole batch, and the optimizer takes a
  // step. `samples`: the rows that this rank's loss is the mean of, 0 if it had none (then it need
  // not call backward, what its gradients hold does not matter, and `loss` may be undefined).
  // A flat optimizer (flat_optimizer.h) divides by the samples in its own pass.
  StepResult step(int64_t samples, const at::Tensor& loss, torch::optim::Optimizer& optimizer);
  // With `update` for the optimizer's step: to clip gradients before, say. Not called on a rank
  // that gets the state from another.
  StepResult step(int64_t samples, double loss, const std::function<void()>& update);

  // Steps of the training completed, those before the checkpoint included.
  int64_t steps() const;

  // Sums of `part`, which gives the values of rank `rank` of `world` ranks and as many on each. It
  // is called again, with other numbers, if the world changes meanwhile. Exact to 2^53 for counts.
  std::vector<double> sum(const std::function<std::vector<double>(int rank, int world)>& part);

  // Compares a checksum of parameters and buffers over all ranks; throws af::Error, the same on all
  // of them, naming those that differ from rank 0.
  void check_agreement();

  // Saves the state in the background, if there is a saver; at the end of an epoch such that the
  // next one follows. Each rank with a saver writes a share of it where all see one directory, else
  // rank 0 all of it. With it go the random number generators of each rank, under "random". The
  // ranks compare a hash of their parameters and buffers: throws af::Error, the same on all of
  // them, naming those that differ from rank 0. Throws af::Error of the checkpoint before.
  void checkpoint();

  // Behind all steps: waits until the last checkpoint is on disk. No rank goes before that.
  void finish();

  // Only the average, for loops in a world of a fixed size: step() without the update. Returns the
  // number of samples over all ranks. Throws CommunicatorError if a rank is lost.
  int64_t average_gradients(int64_t samples);
  // Rank 0's parameters and buffers to all; likewise.
  void broadcast_parameters();

  struct Impl;  // internal

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
