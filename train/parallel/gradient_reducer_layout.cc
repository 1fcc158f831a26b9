// SPDX-License-Identifier: Apache-2.0
// What the buckets of a GradientReducer are, and their memory. (A step: gradient_reducer.cc.)
#include <ATen/Functions.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/error.h"
#include "train/parallel/gradient_reducer.h"
#include "train/parallel/reduced_type.h"

namespace af::train {
namespace {

DataType data_type_of(const std::string& name, at::ScalarType type) {
  if (const auto reduced = reduced_type(type)) return *reduced;
  throw Error::format("parameter {} is {}: gradients are averaged in f64, f32, f16 and bf16 only",
                      name, c10::toString(type));
}

}  // namespace

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
}

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
  // The last bucket goes behind backward: where there is no other, nobody has to know earlier which
  // gradients are there, and each hook would take a microsecond.
  if (buckets_.size() > 1 && hooks_.empty())
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      hooks_.add(parameters_[i], [this, i] { on_ready(i); });
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

}  // namespace af::train
