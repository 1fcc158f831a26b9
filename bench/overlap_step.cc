// SPDX-License-Identifier: Apache-2.0
// A rank that measures how much of an all-reduce is hidden behind backward (bench_overlap starts
// two of them, on a link of limited speed, with torchrun's environment).
//
// Rank 0 prints {"bytes", "backward"}, all wait for a line on standard input, by which the link is
// as fast as it shall be, and rank 0 prints {"backward", "reduce", "both"} for each round: seconds,
// of the slower rank.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <sched.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "af/train/distributed_data_parallel.h"

namespace {

using torch::nn::Linear;
using torch::nn::ReLU;

// Many layers of one size, 25 M parameters: gradients come evenly through backward, as a deep
// model's do. With most of them in one layer there would be nothing to send until it is done.
constexpr int64_t kRows = 1024, kWidth = 1024;
constexpr int kLayers = 24;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(Linear(kWidth, kWidth));
    model->push_back(ReLU());
  }
  return model;
}
constexpr int kRounds = 7;
constexpr std::size_t kBucketBytes = std::size_t{25} << 20;

// An equal share of the cores for each rank: its progress thread has no core of its own here.
void pin(int rank, int world) {
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int share = std::max(1, cores / world);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (int i = 0; i < share; ++i) CPU_SET((rank * share + i) % cores, &mine);
  sched_setaffinity(0, sizeof mine, &mine);
}

class Rank {
 public:
  explicit Rank(af::Communicator& world)
      : world_(world),
        model_(make_model()),
        ddp_(*model_, world),
        rows_(at::randn({kRows, kWidth})) {
    for (const at::Tensor& parameter : model_->parameters()) bytes_ += parameter.nbytes();
    buffer_ = world.allocate(bytes_);
  }

  std::size_t bytes() const { return bytes_; }

  // The forward pass is not timed: nothing is reduced in it.
  double backward() {
    const at::Tensor loss = forward();
    const auto guard = ddp_.no_sync();
    const double took = timed([&] { ddp_.backward(loss, kRows); });
    ddp_.zero_grad();
    return took;
  }

  double both() {
    const at::Tensor loss = forward();
    const double took = timed([&] { ddp_.backward(loss, kRows); });
    ddp_.zero_grad();
    return took;
  }

  // As many bytes in buckets as large, with nothing beside.
  double reduce() {
    char* data = static_cast<char*>(buffer_.data());
    return timed([&] {
      std::vector<af::Work> works;
      for (std::size_t at = 0; at < bytes_; at += kBucketBytes) {
        const std::size_t bytes = std::min(kBucketBytes, bytes_ - at);
        works.push_back(
            world_.all_reduce(data + at, data + at, bytes / sizeof(float), af::DataType::f32));
      }
      for (const af::Work& work : works) work.synchronize();
    });
  }

 private:
  at::Tensor forward() { return model_->forward(rows_).square().mean(); }

  double timed(const std::function<void()>& body) {
    world_.barrier().synchronize();
    const auto start = std::chrono::steady_clock::now();
    body();
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    world_.all_reduce(&took, &took, 1, af::DataType::f64, af::ReduceOp::max).synchronize();
    return took;
  }

  af::Communicator& world_;
  torch::nn::Sequential model_;
  af::train::DistributedDataParallel ddp_;
  at::Tensor rows_;
  af::Buffer buffer_;
  std::size_t bytes_ = 0;
};

void run() {
  at::set_num_threads(1);
  af::Communicator world = af::Communicator::from_environment();
  pin(world.rank(), world.world_size());
  const auto print = [&](const std::string& line) {
    if (world.rank() != 0) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  Rank rank(world);
  for (int i = 0; i < 2; ++i) rank.both();  // buckets are built anew after the first
  double alone = rank.backward();
  for (int i = 0; i < 4; ++i) alone = std::min(alone, rank.backward());
  print(fmt::format("{{\"bytes\": {}, \"backward\": {}, \"world\": \"{}\"}}", rank.bytes(), alone,
                    world.description()));
  std::string line;
  std::getline(std::cin, line);
  rank.reduce();  // until the connection has found the link's new speed
  for (int round = 0; round < kRounds; ++round) {
    const double backward = rank.backward(), reduce = rank.reduce(), both = rank.both();
    print(
        fmt::format("{{\"backward\": {}, \"reduce\": {}, \"both\": {}}}", backward, reduce, both));
  }
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "overlap_step: {}\n", error.what());
    return 1;
  }
}
