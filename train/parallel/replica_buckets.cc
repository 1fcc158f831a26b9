// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/replica_buckets.h"

#include <ATen/Functions.h>

#include <string>
#include <utility>

#include "common/error.h"
#include "train/parallel/bucket_plan.h"

namespace af::train {
namespace {

constexpr int64_t kSums = 4;

DataType data_type_of(const std::string& name, at::ScalarType type) {
  if (type == at::kFloat) return DataType::f32;
  if (type == at::kDouble) return DataType::f64;
  throw Error::format("parameter {} is {}: gradients are averaged in f32 and f64 only", name,
                      c10::toString(type));
}

}  // namespace

thread_local std::function<void()> ReplicaBuckets::after_reduction;

ReplicaBuckets::ReplicaBuckets(const torch::nn::Module& model, std::size_t bucket_bytes) {
  std::vector<at::Tensor> trained;
  std::vector<ParameterShape> shapes;
  std::vector<DataType> types;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    types.push_back(data_type_of(item.key(), parameter.scalar_type()));
    trained.push_back(parameter);
    shapes.push_back({parameter.numel(), static_cast<int>(parameter.scalar_type()),
                      parameter.device().is_cpu() ? -1 : parameter.device().index(),
                      static_cast<std::size_t>(parameter.element_size())});
  }
  for (const BucketPlan& plan : plan_buckets(shapes, bucket_bytes)) {
    Bucket bucket;
    bucket.offsets = plan.offsets;
    bucket.elements = plan.elements;
    bucket.type = types[plan.parameters.front()];
    for (const std::size_t i : plan.parameters) bucket.parameters.push_back(trained[i]);
    buckets_.push_back(std::move(bucket));
  }
}

ReplicaBuckets::Side ReplicaBuckets::make_side(Communicator& world, const Bucket& bucket) {
  const at::Tensor& like = bucket.parameters.front();
  const int64_t elements = bucket.elements + kSums;
  Side side;
  side.memory = world.allocate(static_cast<std::size_t>(elements) * like.element_size());
  // The tensor keeps the memory alive: the model's gradients may outlive this object.
  side.flat = at::from_blob(
      side.memory.data(), {elements}, [keep = side.memory](void*) {},
      like.options().requires_grad(false));
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
    side.gradients.push_back(side.flat.narrow(0, bucket.offsets[i], bucket.parameters[i].numel())
                                 .view(bucket.parameters[i].sizes()));
  return side;
}

void ReplicaBuckets::allocate(Communicator& world, bool kept) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Side, Side>> sides;
  for (const Bucket& bucket : buckets_) {
    Side own = make_side(world, bucket);
    Side reduced = kept ? make_side(world, bucket) : own;
    sides.emplace_back(std::move(own), std::move(reduced));
  }
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    if (bucket.own.flat.defined()) sides[i].first.flat.copy_(bucket.own.flat);
    bucket.own = std::move(sides[i].first);
    bucket.reduced = std::move(sides[i].second);
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k)
      bucket.parameters[k].mutable_grad() = bucket.own.gradients[k];
  }
}

// Makes every parameter's gradient its view again, if a program or an optimizer replaced it.
void ReplicaBuckets::attach() {
  for (const Bucket& bucket : buckets_)
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      at::Tensor& gradient = bucket.parameters[i].mutable_grad();
      at::Tensor view = bucket.own.gradients[i];
      if (gradient.defined() && gradient.data_ptr() == view.data_ptr()) continue;
      if (gradient.defined())
        view.copy_(gradient);
      else
        view.zero_();
      gradient = view;
    }
}

void ReplicaBuckets::zero() {
  for (Bucket& bucket : buckets_) {
    bucket.own.flat.zero_();
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
      bucket.parameters[i].mutable_grad() = bucket.own.gradients[i];
  }
}

ReplicaBuckets::Sums ReplicaBuckets::reduce(Communicator& world, int64_t samples, double loss,
                                            WorldFlags flags) {
  const at::NoGradGuard no_grad;
  attach();
  // Everything is multiplied by the samples: 1 becomes their number, the mean loss its sum, and a
  // flag what it is. A rank without samples may hold anything, also NaN, which times 0 stays NaN.
  const double weight = samples > 0 ? static_cast<double>(samples) : 1.0;
  const at::Tensor mine = at::zeros({kSums}, at::kDouble);
  double* values = mine.data_ptr<double>();
  if (samples > 0) {
    values[0] = 1;
    values[1] = loss;
  }
  values[2] = flags.change ? 1 / weight : 0;
  values[3] = flags.save ? 1 / weight : 0;
  CallOptions call;
  call.pre_scale = weight;
  std::vector<Work> pending;
  for (Bucket& bucket : buckets_) {
    if (samples == 0) bucket.own.flat.zero_();
    bucket.own.flat.narrow(0, bucket.elements, kSums).copy_(mine);
    pending.push_back(world.all_reduce(bucket.own.flat.data_ptr(), bucket.reduced.flat.data_ptr(),
                                       static_cast<std::size_t>(bucket.elements + kSums),
                                       bucket.type, ReduceOp::sum, call));
  }
  Sums sums;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    Bucket& bucket = buckets_[i];
    pending[i].synchronize();
    const at::Tensor all =
        bucket.reduced.flat.narrow(0, bucket.elements, kSums).to(at::kCPU, at::kDouble);
    const double* sum = all.data_ptr<double>();
    sums = {sum[0], sum[1], sum[2] > 0, sum[3] > 0};
    if (sums.samples > 0) bucket.reduced.flat.narrow(0, 0, bucket.elements).div_(sums.samples);
  }
  if (after_reduction) after_reduction();
  return sums;
}

void ReplicaBuckets::show_reduced() {
  for (Bucket& bucket : buckets_)
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
      bucket.parameters[i].mutable_grad() = bucket.reduced.gradients[i];
}

void ReplicaBuckets::broadcast_parameters(Communicator& world) {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    at::Tensor flat = bucket.own.flat;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
      bucket.own.gradients[i].copy_(bucket.parameters[i]);
    world.broadcast(flat.data_ptr(), flat.data_ptr(), flat.nbytes(), DataType::u8, /*root=*/0)
        .synchronize();
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
      bucket.parameters[i].copy_(bucket.own.gradients[i]);
  }
  zero();
}

}  // namespace af::train
