// SPDX-License-Identifier: Apache-2.0
#include "af/train/data_parallel.h"

#include <ATen/Functions.h>
#include <libdeflate.h>

#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "common/error.h"
#include "train/gradient_buckets.h"

namespace af::train {
namespace {

struct View {
  at::Tensor parameter;
  at::Tensor gradient;  // a view of the bucket with the parameter's shape
};

struct Bucket {
  Buffer memory;
  at::Tensor flat;  // all of it; the last element carries the count of samples
  DataType type = DataType::f32;
  std::vector<View> views;
};

DataType data_type_of(const std::string& name, at::ScalarType type) {
  if (type == at::kFloat) return DataType::f32;
  if (type == at::kDouble) return DataType::f64;
  throw Error::format("parameter {} is {}: gradients are averaged in f32 and f64 only", name,
                      c10::toString(type));
}

uint32_t checksum(uint32_t sum, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  return libdeflate_crc32(sum, plain.data_ptr(), plain.nbytes());
}

}  // namespace

struct DataParallel::Impl {
  torch::nn::Module& model;
  Communicator& world;
  std::vector<Bucket> buckets;
  std::vector<at::Tensor> others;  // buffers, and parameters without gradient

  void check_layout() const;
  void make_buckets(std::size_t bucket_bytes);
  void attach();
  std::vector<uint64_t> gather(std::vector<uint64_t> mine) const;
  void broadcast(const at::Tensor& tensor) const;
};

// The values of all ranks, one after the other. They travel in tensors on the model's device: NCCL
// takes no host memory.
std::vector<uint64_t> DataParallel::Impl::gather(std::vector<uint64_t> mine) const {
  const auto parameters = model.parameters();
  const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor in = at::from_blob(mine.data(), {count}, at::kLong).to(device);
  const at::Tensor out = at::empty({count * world.world_size()}, in.options());
  world.all_gather(in.data_ptr(), out.data_ptr(), mine.size(), DataType::u64).synchronize();
  const at::Tensor all = out.cpu();
  const int64_t* values = all.data_ptr<int64_t>();
  return std::vector<uint64_t>(values, values + all.numel());
}

void DataParallel::Impl::check_layout() const {
  std::string text;
  uint64_t parameters = 0;
  uint64_t elements = 0;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    text += fmt::format("{} {} [{}] {};", name, c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ","),
                        tensor.requires_grad());
    ++parameters;
    elements += static_cast<uint64_t>(tensor.numel());
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  const uint64_t sum = libdeflate_crc32(0, text.data(), text.size());
  const auto all = gather({sum, parameters, elements});
  for (std::size_t rank = 1; rank * 3 < all.size(); ++rank)
    if (all[rank * 3] != all[0])
      throw Error::format(
          "rank {} has another model than rank 0 ({} tensors with {} elements, against {} with "
          "{}): "
          "names, shapes and types must be the same on all ranks",
          rank, all[rank * 3 + 1], all[rank * 3 + 2], all[1], all[2]);
}

void DataParallel::Impl::make_buckets(std::size_t bucket_bytes) {
  std::vector<at::Tensor> trained;
  std::vector<ParameterShape> shapes;
  std::vector<DataType> types;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) {
      others.push_back(parameter.detach());
      continue;
    }
    types.push_back(data_type_of(item.key(), parameter.scalar_type()));
    trained.push_back(parameter);
    shapes.push_back({parameter.numel(), static_cast<int>(parameter.scalar_type()),
                      parameter.device().is_cpu() ? -1 : parameter.device().index(),
                      static_cast<std::size_t>(parameter.element_size())});
  }
  for (const auto& buffer : model.buffers()) others.push_back(buffer.detach());

  for (const BucketPlan& plan : plan_buckets(shapes, bucket_bytes)) {
    Bucket bucket;
    const at::Tensor& like = trained[plan.parameters.front()];
    const int64_t elements = plan.elements + 1;
    bucket.type = types[plan.parameters.front()];
    bucket.memory = world.allocate(static_cast<std::size_t>(elements) * like.element_size());
    // The tensor keeps the memory alive: the model's gradients may outlive this object.
    bucket.flat = at::from_blob(
        bucket.memory.data(), {elements}, [keep = bucket.memory](void*) {},
        like.options().requires_grad(false));
    for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
      const at::Tensor& parameter = trained[plan.parameters[i]];
      bucket.views.push_back(
          {parameter,
           bucket.flat.narrow(0, plan.offsets[i], parameter.numel()).view(parameter.sizes())});
    }
    buckets.push_back(std::move(bucket));
  }
}

// Makes every parameter's gradient its view again, if a program or an optimizer replaced it.
void DataParallel::Impl::attach() {
  for (const Bucket& bucket : buckets)
    for (const View& view : bucket.views) {
      at::Tensor& gradient = view.parameter.mutable_grad();
      if (gradient.defined() && gradient.data_ptr() == view.gradient.data_ptr()) continue;
      at::Tensor target = view.gradient;
      if (gradient.defined())
        target.copy_(gradient);
      else
        target.zero_();
      gradient = target;
    }
}

void DataParallel::Impl::broadcast(const at::Tensor& tensor) const {
  const at::Tensor plain = tensor.contiguous();
  world.broadcast(plain.data_ptr(), plain.data_ptr(), plain.nbytes(), DataType::u8, /*root=*/0)
      .synchronize();
  if (!plain.is_same(tensor)) at::Tensor(tensor).copy_(plain);
}

DataParallel::DataParallel(torch::nn::Module& model, Communicator& world,
                           DataParallelOptions options)
    : impl_(new Impl{model, world, {}, {}}) {
  const at::NoGradGuard no_grad;
  impl_->check_layout();
  impl_->make_buckets(options.bucket_bytes);
  broadcast_parameters();
}

DataParallel::~DataParallel() = default;

void DataParallel::broadcast_parameters() {
  const at::NoGradGuard no_grad;
  // The buckets have the parameters' shapes: they carry all values of a bucket in one operation.
  for (Bucket& bucket : impl_->buckets) {
    for (View& view : bucket.views) view.gradient.copy_(view.parameter);
    impl_->broadcast(bucket.flat);
    for (View& view : bucket.views) view.parameter.copy_(view.gradient);
    bucket.flat.zero_();
  }
  for (const at::Tensor& tensor : impl_->others) impl_->broadcast(tensor);
  impl_->attach();
}

void DataParallel::zero_grad() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : impl_->buckets) bucket.flat.zero_();
  impl_->attach();
}

int64_t DataParallel::average_gradients(int64_t samples) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  const at::NoGradGuard no_grad;
  impl_->attach();
  std::vector<Work> pending;
  CallOptions call;
  call.pre_scale = static_cast<double>(samples);  // makes the 1 below the number of samples
  for (Bucket& bucket : impl_->buckets) {
    // A rank without samples may hold anything, also NaN, which times 0 would stay NaN.
    if (samples == 0) bucket.flat.zero_();
    bucket.flat[-1] = 1;
    void* data = bucket.flat.data_ptr();
    pending.push_back(impl_->world.all_reduce(data, data,
                                              static_cast<std::size_t>(bucket.flat.numel()),
                                              bucket.type, ReduceOp::sum, call));
  }
  double total = 0;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    Bucket& bucket = impl_->buckets[i];
    pending[i].synchronize();
    total = bucket.flat[-1].item<double>();
    if (total > 0) bucket.flat.div_(total);
  }
  return static_cast<int64_t>(total);
}

void DataParallel::check_agreement() {
  uint32_t sum = 0;
  for (const auto& parameter : impl_->model.parameters()) sum = checksum(sum, parameter);
  for (const auto& buffer : impl_->model.buffers()) sum = checksum(sum, buffer);
  const auto all = impl_->gather({sum});
  std::vector<std::size_t> others;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0]) others.push_back(rank);
  if (!others.empty())
    throw Error::format(
        "the parameters of rank {} are not those of rank 0: the copies of the model "
        "have drifted apart",
        fmt::join(others, ", "));
}

}  // namespace af::train
