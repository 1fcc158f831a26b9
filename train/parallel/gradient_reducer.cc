// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/gradient_reducer.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "af/train/trace.h"
#include "common/error.h"

namespace af::train {
namespace {

// For host memory without a tensor's operations: a small model's step is a few microseconds.
template <typename Body>
void with_host_numbers(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat)
    body(tensor.data_ptr<float>());
  else
    body(tensor.data_ptr<double>());
}

// A tensor's copy_() takes longer to find out how than a small gradient to copy. A large one it
// copies with all its threads; and it negates where a view says so, which memcpy would not.
constexpr std::size_t kSmallBytes = 64 * 1024;

void copy_gradient(const at::Tensor& from, const at::Tensor& to) {
  if (from.nbytes() <= kSmallBytes && from.is_cpu() && to.is_cpu() &&
      from.scalar_type() == to.scalar_type() && from.is_contiguous() && to.is_contiguous() &&
      !from.is_neg())
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
  else
    to.copy_(from);
}

}  // namespace

thread_local std::function<void()> GradientReducer::after_reduction;

void GradientReducer::zero() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void GradientReducer::expect(Communicator& world, double weight) {
  const std::lock_guard lock(mutex_);
  if (progress_.gone() > 0)
    throw Error(
        "the gradients of a backward pass are being reduced, and what waits for them has not been "
        "called (step(), finish()): another step cannot begin");
  progress_.begin();
  expected_by_ = nullptr;
  // In 16 bits sums are divided by about the number of samples before they are added up, which is
  // known from the first step on.
  if (weight <= 0 || (travels_apart_ && reference_ == 0)) return;
  expected_by_ = &world;
  expected_weight_ = weight;
}

void GradientReducer::forget() {
  const std::lock_guard lock(mutex_);
  if (progress_.gone() == 0) expected_by_ = nullptr;
}

void GradientReducer::on_ready(std::size_t parameter) noexcept {
  const std::lock_guard lock(mutex_);
  if (buckets_.empty()) return;
  try {
    const at::NoGradGuard no_grad;
    if (tracing()) trace_done();
    take_gradient(parameter);
    if (!rebuilt_ && has_arrived_[parameter] == 0) {
      has_arrived_[parameter] = 1;
      arrived_.push_back(parameter);
    }
    if (expected_by_ == nullptr || failure_) return;
    if (!progress_.mark(parameter) && places_[parameter].bucket < progress_.gone())
      throw Error::format(
          "a second backward pass for parameter {}, whose gradients are being reduced: let all "
          "passes of a step but the last one run under no_sync()",
          names_[parameter]);
    while (const auto bucket = progress_.take_complete())
      launch(*expected_by_, *bucket, expected_weight_ / reference(), /*blocking=*/false);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

// Makes the parameter's gradient its place in the bucket, if it is another tensor.
void GradientReducer::take_gradient(std::size_t parameter) {
  const Place& place = places_[parameter];
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const at::Tensor& own = buckets_[place.bucket].own.gradients[place.slot];
  if (!gradient.defined()) return;
  if (gradient.layout() != at::kStrided) {
    own.copy_(gradient.to_dense());
  } else if (gradient.data_ptr() == own.data_ptr()) {
    return;
  } else {
    copy_gradient(gradient, own);
  }
  gradient = own;
}

void GradientReducer::launch(Communicator& world, std::size_t bucket, double factor,
                             bool blocking) {
  Bucket& one = buckets_[bucket];
  CallOptions call;
  call.pre_scale = factor;
  call.blocking = blocking;
  const void* in = one.own.flat.data_ptr();
  void* out = one.reduced.flat.data_ptr();
  int64_t count = one.own.flat.numel();
  if (!one.narrow.empty()) {
    one.narrow.flat.copy_(one.own.flat.narrow(0, 0, one.elements));
    in = out = one.narrow.flat.data_ptr();
    count = one.elements;
  }
  one.traced_since = tracing() ? trace_now() : 0;
  one.pending =
      world.all_reduce(in, out, static_cast<std::size_t>(count), one.wire, ReduceOp::sum, call);
}

// A reduction ends for a profile when it is first seen to be done: at the next gradient, or behind
// backward.
void GradientReducer::trace_done() {
  for (Bucket& bucket : buckets_) {
    if (bucket.traced_since == 0 || !bucket.pending.done()) continue;
    const BucketMemory& sent = bucket.narrow.empty() ? bucket.own : bucket.narrow;
    trace_add(TraceKind::communication, "all_reduce", bucket.traced_since, trace_now(),
              static_cast<int64_t>(sent.flat.nbytes()));
    bucket.traced_since = 0;
  }
}

// Fills what hooks have not, and says which parameters have a gradient and which is the first
// without. A rank without samples may hold anything, also NaN, which times 0 stays NaN.
void GradientReducer::complete_gradients(StepPart& part) {
  const bool detect = options_.unused == Unused::detect;
  if (detect) part.used.assign(parameters_.size(), 0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    if (part.samples == 0) {
      bucket.own.flat.zero_();
      continue;
    }
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const std::size_t i = plan_[b].parameters[k];
      if (bucket.parameters[k].grad().defined()) {
        if (b >= progress_.gone()) take_gradient(i);
        if (detect) part.used[i] = 1;
      } else {
        bucket.own.gradients[k].zero_();
        if (!part.missing || i < *part.missing) part.missing = i;
      }
    }
  }
}

// Rank 0 asks for new buckets when it has seen the order in which all gradients come.
bool GradientReducer::wants_rebuild(const StepPart& part) {
  if (rebuilt_ || part.samples == 0 || arrived_.empty()) return false;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_arrived_[i] == 0 && parameters_[i].grad().defined()) return false;
  if (!same_buckets(plan_buckets(shapes_, arrived_order(), options_.limits), plan_)) return true;
  rebuilt_ = true;
  return false;
}

StepSums GradientReducer::finish(Communicator& world, const Share& share, WorldFlags flags) {
  if (empty()) return {};
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  try {
    if (failure_) std::rethrow_exception(failure_);
    check_expected(share);
    launched_by_hooks_ = progress_.gone();
    StepPart part;
    part.samples = static_cast<double>(share.samples);
    part.loss = share.loss;
    part.change = flags.change;
    part.save = flags.save;
    complete_gradients(part);
    part.rebuild = world.rank() == 0 && wants_rebuild(part);
    const StepSums sums = reduce_all(world, share, part);
    if (after_reduction) after_reduction();
    widen();
    reduced_.scale = sums.samples > 0 ? reference() / sums.samples : 1;
    // The largest, since a last batch of a few rows says little about the next one.
    reference_ = std::max(reference_, reference_for(sums.samples));
    if (sums.rebuild) rebuild(world);
    show(sums);
    end_step();
    check_unused(sums, part);
    return sums;
  } catch (...) {
    end_step();
    throw;
  }
}

StepSums GradientReducer::reduce_all(Communicator& world, const Share& share,
                                     const StepPart& part) {
  StepSums sums;
  const double weight = share.samples > 0 ? share.weight : 1;
  const bool first = travels_apart_ && reference_ == 0;
  if (first) {
    sums = reduce_apart(world, part);
    reference_ = reference_for(sums.samples);
  }
  const double factor = weight / reference();
  if (!travels_apart_) write_sums(to_numbers(part, factor));
  while (const auto bucket = progress_.take_next()) {
    const bool last = *bucket + 1 == buckets_.size();
    if (last && travels_apart_ && !first) sums = reduce_apart(world, part);
    launch(world, *bucket, factor, /*blocking=*/last);
  }
  for (const Bucket& bucket : buckets_) {
    bucket.pending.synchronize();
    if (tracing()) trace_done();
  }
  if (!travels_apart_) sums = from_numbers(read_sums());
  return sums;
}

StepSums GradientReducer::reduce_apart(Communicator& world, const StepPart& part) const {
  std::vector<double> numbers = to_numbers(part, 1);
  const auto count = static_cast<int64_t>(numbers.size());
  const at::Tensor host = at::from_blob(numbers.data(), {count}, at::kDouble);
  const at::Tensor sent = host.to(parameters_.front().device());
  CallOptions call;
  call.blocking = true;
  world
      .all_reduce(sent.data_ptr(), sent.data_ptr(), numbers.size(), DataType::f64, ReduceOp::sum,
                  call)
      .synchronize();
  if (!sent.is_cpu()) host.copy_(sent);
  return from_numbers(numbers);
}

void GradientReducer::write_sums(const std::vector<double>& numbers) {
  const Bucket& last = buckets_.back();
  const at::Tensor& flat = last.own.flat;
  const auto count = static_cast<int64_t>(numbers.size());
  if (flat.is_cpu()) {
    with_host_numbers(flat, [&](auto* to) {
      for (int64_t i = 0; i < count; ++i)
        to[last.elements + i] = static_cast<std::remove_reference_t<decltype(*to)>>(
            numbers[static_cast<std::size_t>(i)]);
    });
  } else {
    flat.narrow(0, last.elements, count).copy_(at::tensor(numbers, at::TensorOptions(at::kDouble)));
  }
}

std::vector<double> GradientReducer::read_sums() const {
  const Bucket& last = buckets_.back();
  const at::Tensor& flat = last.reduced.flat;
  const int64_t count = flat.numel() - last.elements;
  std::vector<double> numbers(static_cast<std::size_t>(count));
  if (flat.is_cpu()) {
    with_host_numbers(flat, [&](const auto* from) {
      for (int64_t i = 0; i < count; ++i)
        numbers[static_cast<std::size_t>(i)] = static_cast<double>(from[last.elements + i]);
    });
  } else {
    at::from_blob(numbers.data(), {count}, at::kDouble).copy_(flat.narrow(0, last.elements, count));
  }
  return numbers;
}

// From what has travelled back to the parameters' type. Behind all reductions: until then the
// rank's own gradients are what it could reduce again.
void GradientReducer::widen() {
  for (const Bucket& bucket : buckets_)
    if (!bucket.narrow.empty())
      bucket.reduced.flat.narrow(0, 0, bucket.elements).copy_(bucket.narrow.flat);
}

void GradientReducer::show(const StepSums& sums) {
  for (GradientBucket& bucket : reduced_.buckets)
    for (std::size_t k = 0; k < bucket.slots.size(); ++k) {
      GradientSlot& slot = bucket.slots[k];
      slot.used = sums.used.empty() || sums.used[slot.index] != 0;
      at::Tensor& gradient = parameters_[slot.index].mutable_grad();
      const Place& place = places_[slot.index];
      const at::Tensor& reduced = buckets_[place.bucket].reduced.gradients[place.slot];
      if (!slot.used)
        gradient.reset();
      else if (!gradient.is_same(reduced))
        gradient = reduced;
    }
}

void GradientReducer::end_step() {
  for (Bucket& bucket : buckets_) bucket.pending = Work();
  progress_.begin();
  expected_by_ = nullptr;
  failure_ = nullptr;
}

void GradientReducer::check_expected(const Share& share) const {
  if (progress_.gone() == 0 || share.weight == expected_weight_) return;
  throw Error::format(
      "gradients of {:g} samples, but they were reduced during backward as those of {:g}: say "
      "before backward how many it is (zero_grad(samples))",
      share.weight, expected_weight_);
}

// The same on all ranks, so that none waits for the others in the next step.
void GradientReducer::check_unused(const StepSums& sums, const StepPart& part) const {
  if (options_.unused != Unused::refuse || sums.ranks_missing == 0) return;
  const std::string advice =
      ": its loss does not depend on it. Ask for unused parameters to be found if that is meant, "
      "or set requires_grad to false if it is never trained";
  if (part.missing)
    throw Error::format("parameter {} got no gradient on this rank{}", names_[*part.missing],
                        advice);
  if (sums.missing && *sums.missing < names_.size())
    throw Error::format("parameter {} got no gradient on another rank{}", names_[*sums.missing],
                        advice);
  throw Error::format("a parameter got no gradient on {} other ranks, which name it{}",
                      sums.ranks_missing, advice);
}

}  // namespace af::train
