// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/gradient_reducer.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

DataType data_type_of(const std::string& name, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::f32;
    case at::kDouble:
      return DataType::f64;
    case at::kHalf:
      return DataType::f16;
    case at::kBFloat16:
      return DataType::bf16;
    default:
      throw Error::format(
          "parameter {} is {}: gradients are averaged in f64, f32, f16 and bf16 only", name,
          c10::toString(type));
  }
}

// For host memory without a tensor's operations: a small model's step is a few microseconds.
template <typename Body>
void with_host_numbers(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat)
    body(tensor.data_ptr<float>());
  else
    body(tensor.data_ptr<double>());
}

}  // namespace

thread_local std::function<void()> GradientReducer::after_reduction;

GradientReducer::GradientReducer(const torch::nn::Module& model, Options options)
    : options_(std::move(options)) {
  std::unordered_set<const void*> seen;  // a parameter that two modules share counts once
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    names_.push_back(item.key());
    types_.push_back(data_type_of(item.key(), parameter.scalar_type()));
    parameters_.push_back(parameter);
    shapes_.push_back({parameter.numel(), static_cast<int>(parameter.scalar_type()),
                       parameter.device().is_cpu() ? -1 : parameter.device().index(),
                       static_cast<std::size_t>(parameter.element_size())});
  }
  travels_apart_ = travels_apart();
  order_ = reverse_order(parameters_.size());
  has_arrived_.resize(parameters_.size());
  hooks_ =
      std::make_unique<GradientHooks>(parameters_, [this](std::size_t i) { this->on_ready(i); });
}

// Layout -----------------------------------------------------------------------------------------

// The order that rank `root` has or would have, and whether it is final.
std::vector<std::size_t> GradientReducer::agree_on_order(Communicator& world, int root,
                                                         const std::vector<std::size_t>& mine,
                                                         bool& rebuilt) const {
  std::vector<int32_t> numbers(mine.begin(), mine.end());
  numbers.push_back(rebuilt ? 1 : 0);
  const auto count = static_cast<int64_t>(numbers.size());
  const at::Tensor sent =
      at::from_blob(numbers.data(), {count}, at::kInt).to(parameters_.front().device());
  world.broadcast(sent.data_ptr(), sent.data_ptr(), numbers.size(), DataType::i32, root)
      .synchronize();
  const at::Tensor got = sent.cpu();
  const int32_t* values = got.data_ptr<int32_t>();
  rebuilt = values[count - 1] != 0;
  return {values, values + count - 1};
}

std::vector<GradientReducer::Bucket> GradientReducer::make_buckets(
    Communicator& world, const std::vector<BucketPlan>& plan, bool kept) const {
  const auto sums = count_of_sums(options_.unused == Unused::detect ? parameters_.size() : 0);
  std::vector<Bucket> buckets;
  for (const BucketPlan& planned : plan) {
    Bucket bucket;
    bucket.elements = planned.elements;
    bucket.wire = types_[planned.parameters.front()];
    for (const std::size_t i : planned.parameters) bucket.parameters.push_back(parameters_[i]);
    const bool last = buckets.size() + 1 == plan.size();
    const int64_t all =
        planned.elements + (last && !travels_apart_ ? static_cast<int64_t>(sums) : 0);
    const auto like = bucket.parameters.front().options();
    bucket.own = allocate_flat(world, all, like);
    place_gradients(bucket.own, bucket.parameters, planned.offsets);
    bucket.reduced = bucket.own;
    if (options_.compression && like.dtype().itemsize() > 2) {
      // What travels is a copy, so that nothing has to be kept beside it.
      bucket.narrow = allocate_flat(world, planned.elements, like.dtype(*options_.compression));
      bucket.wire = data_type_of("", *options_.compression);
    } else if (kept) {
      bucket.reduced = allocate_flat(world, all, like);
      place_gradients(bucket.reduced, bucket.parameters, planned.offsets);
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

// Whether any bucket travels in 16 bits, which do not hold the number of samples.
bool GradientReducer::travels_apart() const {
  return options_.compression ||
         std::any_of(types_.begin(), types_.end(), [](DataType type) { return size_of(type) < 4; });
}

void GradientReducer::adopt(std::vector<BucketPlan> plan, std::vector<Bucket> buckets) {
  if (plan != plan_ || reduced_.layout == 0) ++reduced_.layout;
  plan_ = std::move(plan);
  buckets_ = std::move(buckets);
  places_.resize(parameters_.size());
  reduced_.buckets.clear();
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    GradientBucket shown;
    shown.gradients = buckets_[b].reduced.flat.narrow(0, 0, plan_[b].elements);
    for (std::size_t k = 0; k < plan_[b].parameters.size(); ++k) {
      const std::size_t i = plan_[b].parameters[k];
      places_[i] = {b, k};
      shown.slots.push_back({i, parameters_[i], plan_[b].offsets[k], shapes_[i].elements});
    }
    reduced_.buckets.push_back(std::move(shown));
  }
  progress_ = BucketProgress(plan_, parameters_.size());
}

void GradientReducer::allocate(Communicator& world, bool kept, int layout_root) {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  bool rebuilt = rebuilt_;
  const std::vector<std::size_t> order = agree_on_order(world, layout_root, order_, rebuilt);
  auto plan = plan_buckets(shapes_, order, options_.limits);
  auto buckets = make_buckets(world, plan, kept);
  for (std::size_t b = 0; b < plan.size(); ++b)
    for (std::size_t k = 0; k < plan[b].parameters.size(); ++k) {
      at::Tensor& gradient = buckets[b].parameters[k].mutable_grad();
      if (!gradient.defined()) continue;
      buckets[b].own.gradients[k].copy_(gradient);
      gradient = buckets[b].own.gradients[k];
    }
  order_ = order;
  rebuilt_ = rebuilt;
  kept_ = kept;
  reference_ = 0;
  adopt(std::move(plan), std::move(buckets));
  end_step();
}

// The order in which gradients came, then those that did not.
std::vector<std::size_t> GradientReducer::arrived_order() const {
  std::vector<std::size_t> order = arrived_;
  for (const std::size_t i : order_)
    if (has_arrived_[i] == 0) order.push_back(i);
  return order;
}

void GradientReducer::rebuild(Communicator& world) {
  bool rebuilt = true;
  std::vector<std::size_t> order = agree_on_order(world, 0, arrived_order(), rebuilt);
  auto plan = plan_buckets(shapes_, order, options_.limits);
  auto buckets = make_buckets(world, plan, kept_);
  for (std::size_t b = 0; b < plan.size(); ++b)
    for (std::size_t k = 0; k < plan[b].parameters.size(); ++k) {
      const Place& was = places_[plan[b].parameters[k]];
      buckets[b].reduced.gradients[k].copy_(buckets_[was.bucket].reduced.gradients[was.slot]);
    }
  order_ = std::move(order);
  rebuilt_ = true;
  adopt(std::move(plan), std::move(buckets));
}

// A step -----------------------------------------------------------------------------------------

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
    own.copy_(gradient);
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
  one.pending =
      world.all_reduce(in, out, static_cast<std::size_t>(count), one.wire, ReduceOp::sum, call);
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
  for (const Bucket& bucket : buckets_) bucket.pending.synchronize();
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
