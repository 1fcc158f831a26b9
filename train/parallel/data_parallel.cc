// SPDX-License-Identifier: Apache-2.0
// The calls that all ranks of a DataParallel make.
#include "af/train/data_parallel.h"

#include <ATen/Functions.h>
#include <libdeflate.h>

#include <limits>
#include <utility>

#include <fmt/ranges.h>

#include "af/train/callback.h"
#include "af/train/flat_optimizer.h"
#include "af/train/trace.h"
#include "common/error.h"
#include "train/parallel/data_parallel_impl.h"
#include "train/parallel/model_agreement.h"
#include "train/parallel/tensor_broadcast.h"

namespace af::train {
namespace {

using StepResult = DataParallel::StepResult;

uint32_t checksum(uint32_t sum, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  return libdeflate_crc32(sum, plain.data_ptr(), plain.nbytes());
}

}  // namespace

GradientReducer::Options reducer_options(const DataParallelOptions& options) {
  GradientReducer::Options reducer;
  reducer.limits = {options.first_bucket_bytes, options.bucket_bytes};
  reducer.compression = options.compression;
  return reducer;
}

void DataParallel::Impl::expect() {
  if (!expected) return;
  try {
    reducer.expect(communicator(), static_cast<double>(*expected));
  } catch (const CommunicatorError&) {  // step() will meet it, and can go on without this world
  }
}

WorldFlags DataParallel::Impl::flags(bool at_checkpoint) const {
  if (world == nullptr) return {};
  WorldFlags own = world->flags(at_checkpoint);
  own.save = own.save && saver != nullptr;
  return own;
}

void DataParallel::Impl::tell_start() {
  if (options.callbacks == nullptr || std::exchange(started, true)) return;
  options.callbacks->start({rank(), communicator().world_size(), steps});
}

StepResult DataParallel::Impl::tell_step(const StepResult& result) {
  if (options.callbacks != nullptr)
    options.callbacks->step(
        {steps, dealer != nullptr ? dealer->epoch() : 0, result.samples, result.loss});
  return result;
}

void DataParallel::Impl::agree(bool change, bool save) {
  if (world == nullptr) return;
  world->agree(change, save);
  change_agreed = change_agreed || change;
  save_agreed = save_agreed || save;
}

std::vector<double> DataParallel::Impl::sum(Communicator& comm, std::vector<double> values,
                                            WorldFlags own) {
  values.push_back(own.change ? 1 : 0);
  values.push_back(own.save ? 1 : 0);
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor sums = at::from_blob(values.data(), {count}, at::kDouble).to(device);
  comm.all_reduce(sums.data_ptr(), sums.data_ptr(), values.size(), DataType::f64).synchronize();
  at::from_blob(values.data(), {count}, at::kDouble).copy_(sums);
  agree(values[values.size() - 2] > 0, values.back() > 0);
  values.resize(values.size() - 2);
  return values;
}

std::vector<double> DataParallel::Impl::call(
    const std::function<std::vector<double>(Communicator&)>& run) {
  enter();
  while (results.size() <= called) {
    try {
      results.push_back(run(communicator()));
    } catch (const CommunicatorError& error) {
      if (!elastic() || !is_of_the_world(error)) throw;
      next_world();  // which brings the result, where others have it
    }
  }
  return results[called++];
}

StepResult DataParallel::Impl::step(int64_t samples, double loss,
                                    const std::function<void(GradientBuckets&)>& update) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  check_joined();
  // What the program has done between zero_grad() and here; spans of its own lie within.
  if (const int64_t since = std::exchange(computing_since, 0); since != 0)
    detail::add_span(TraceKind::compute, "forward and backward", since, 0);
  const int64_t before = steps;
  in_step = true;
  expected.reset();
  const GradientReducer::Share share{samples, static_cast<double>(samples), loss};
  std::optional<StepSums> sums;
  while (!sums) {
    try {
      const TraceSpan span(TraceKind::communication, "wait for gradients");
      sums = reducer.finish(communicator(), share, flags(false));
    } catch (const CommunicatorError& error) {
      if (!elastic() || !is_of_the_world(error)) throw;
      const at::NoGradGuard no_grad;
      next_world();
      if (steps > before) {  // others had the result, and this rank has their state now
        in_step = false;
        called = 0;
        return last;
      }
    }
  }
  agree(sums->change, sums->save);
  update(reducer.gradients());
  ++steps;
  in_step = false;
  last.samples = static_cast<int64_t>(sums->samples);
  last.loss =
      sums->samples > 0 ? sums->loss / sums->samples : std::numeric_limits<double>::quiet_NaN();
  results.clear();
  called = 0;
  if (dealer != nullptr && dealer->in_step()) dealer->complete();
  if (world != nullptr) world->step_done(steps);
  prepare_saver();
  return last;
}

// The class --------------------------------------------------------------------------------------

DataParallel::DataParallel(torch::nn::Module& model, Communicator& world,
                           DataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, &world, nullptr, std::move(options))) {
  const at::NoGradGuard no_grad;
  impl_->compare(world);
  impl_->reducer.allocate(world, /*kept=*/false, /*layout_root=*/0);
  impl_->joined = true;
  broadcast_parameters();
}

DataParallel::DataParallel(torch::nn::Module& model, World& world, DataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, nullptr, &world, std::move(options))) {
  if (impl_->reducer.empty()) throw Error("DataParallel: no parameter needs a gradient");
}

DataParallel::~DataParallel() {
  impl_->watch->end();
}

void DataParallel::begin() {
  Impl& impl = *impl_;
  if (impl.world == nullptr || impl.joined) return impl.tell_start();
  const at::NoGradGuard no_grad;
  const WorldView view = impl.world->view();
  if (impl.dealer != nullptr) impl.dealer->set_world(view.rank, view.world_size);
  try {
    impl.form();
  } catch (const CommunicatorError& error) {
    if (!impl.elastic() || !is_of_the_world(error)) throw;
    impl.next_world();
  }
  impl.tell_start();
}

std::optional<std::vector<int64_t>> DataParallel::next(int64_t epoch) {
  if (impl_->dealer == nullptr) throw Error("DataParallel: next() without a dealer (see keep())");
  if (!impl_->dealer->in_step()) impl_->enter();
  auto rows = impl_->dealer->next(epoch);
  impl_->dealt = rows ? std::optional(static_cast<int64_t>(rows->size())) : std::nullopt;
  if (!rows && impl_->options.callbacks != nullptr &&
      std::exchange(impl_->epoch_told, epoch) != epoch)
    impl_->options.callbacks->epoch({epoch, impl_->steps});
  return rows;
}

void DataParallel::zero_grad(std::optional<int64_t> samples) {
  Impl& impl = *impl_;
  if (impl.dealer == nullptr) impl.enter();
  impl.check_joined();
  impl.tell_start();
  impl.reducer.zero();
  impl.computing_since = tracing() ? trace_now() : 0;
  impl.expected = samples ? samples : impl.dealt;
  if (impl.no_sync == 0) impl.expect();
}

NoSync DataParallel::no_sync() {
  Impl& impl = *impl_;
  ++impl.no_sync;
  impl.reducer.forget();
  return NoSync([&impl] {
    if (--impl.no_sync == 0) impl.expect();
  });
}

DataParallel::StepResult DataParallel::step(int64_t samples, const at::Tensor& loss,
                                            torch::optim::Optimizer& optimizer) {
  const double value = samples > 0 && loss.defined() ? loss.item<double>() : 0;
  auto* flat = dynamic_cast<FlatOptimizer*>(&optimizer);
  return impl_->tell_step(impl_->step(samples, value, [&](GradientBuckets& gradients) {
    const TraceSpan span(TraceKind::compute, "optimizer");
    if (flat != nullptr)
      flat->scale_gradients(gradients.scale);  // in its own pass
    else
      apply_scale(gradients);
    optimizer.step();
  }));
}

DataParallel::StepResult DataParallel::step(int64_t samples, double loss,
                                            const std::function<void()>& update) {
  return impl_->tell_step(impl_->step(samples, loss, [&](GradientBuckets& gradients) {
    const TraceSpan span(TraceKind::compute, "optimizer");
    apply_scale(gradients);
    update();
  }));
}

int64_t DataParallel::steps() const {
  return impl_->steps;
}

std::vector<double> DataParallel::sum(
    const std::function<std::vector<double>(int rank, int world)>& part) {
  const at::NoGradGuard no_grad;
  return impl_->call([&](Communicator& comm) {
    return impl_->sum(comm, part(comm.rank(), comm.world_size()), impl_->flags(false));
  });
}

void DataParallel::check_agreement() {
  const at::NoGradGuard no_grad;
  const auto differing = impl_->call([&](Communicator& comm) {
    uint32_t sum = 0;
    for (const auto& parameter : impl_->model.parameters()) sum = checksum(sum, parameter);
    for (const auto& buffer : impl_->model.buffers()) sum = checksum(sum, buffer);
    const auto all = gather_numbers(comm, {sum}, impl_->device);
    std::vector<double> others;
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0]) others.push_back(static_cast<double>(rank));
    return others;
  });
  if (!differing.empty())
    throw Error::format(
        "the parameters of rank {} are not those of rank 0: the copies of the model "
        "have drifted apart",
        fmt::join(differing, ", "));
}

void DataParallel::checkpoint() {
  Impl& impl = *impl_;
  const at::NoGradGuard no_grad;
  // A report with a checkpoint: a change that waits for one is agreed on here.
  const std::vector<double> nothing;
  impl.call([&](Communicator& comm) {
    impl.replica_checkpoint.agree(comm, impl.device, impl.saver, impl.steps, state());
    return impl.sum(comm, nothing, impl.flags(true));
  });
  if (impl.dealer != nullptr && impl.dealer->at_end())
    impl.dealer->finish_epoch(impl.dealer->epoch());
  impl.save_checkpoint();
}

void DataParallel::finish() {
  Impl& impl = *impl_;
  impl.enter();
  if (impl.saver != nullptr) impl.saver->flush();
  const std::vector<double> nothing;
  impl.call([&](Communicator& comm) { return impl.sum(comm, nothing, {}); });
  if (impl.options.callbacks != nullptr)
    impl.options.callbacks->end({EndInfo::How::finished, impl.steps});
  if (impl.world != nullptr) impl.world->finished();
}

int64_t DataParallel::average_gradients(int64_t samples) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  impl_->check_joined();
  impl_->expected.reset();
  const StepSums sums =
      impl_->reducer.finish(impl_->communicator(), {samples, static_cast<double>(samples), 0}, {});
  apply_scale(impl_->reducer.gradients());
  return static_cast<int64_t>(sums.samples);
}

void DataParallel::broadcast_parameters() {
  Communicator& comm = impl_->communicator();
  broadcast_tensors(comm, impl_->model.parameters(), /*root=*/0);
  broadcast_tensors(comm, impl_->model.buffers(), /*root=*/0);
}

}  // namespace af::train
